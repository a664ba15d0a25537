"""Text, tokens and batches."""

from genesis_fn.data.chat_template import ChatTemplate as ChatTemplate
from genesis_fn.data.corpus import (
    read_texts as read_texts,
    split_files as split_files,
    standard_library as standard_library,
    text_files as text_files,
)
from genesis_fn.data.tokenizer import (
    END as END,
    load_tokenizer as load_tokenizer,
    save_tokenizer as save_tokenizer,
    train_tokenizer as train_tokenizer,
)
from genesis_fn.data.tokens import (
    TokenWindows as TokenWindows,
    encode as encode,
    unigram_entropy as unigram_entropy,
)
