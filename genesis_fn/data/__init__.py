"""Text, tokens and batches."""

from genesis_fn.data.chat_template import ChatTemplate as ChatTemplate
from genesis_fn.data.corpus import (
    read_texts as read_texts,
    split_files as split_files,
    standard_library as standard_library,
    text_files as text_files,
)
from genesis_fn.data.examples.example import Example as Example
from genesis_fn.data.examples.records import ExampleCounts as ExampleCounts, Examples as Examples
from genesis_fn.data.streams.batching import BatchedRows as BatchedRows, Prefetch as Prefetch
from genesis_fn.data.streams.packing import Packed as Packed
from genesis_fn.data.streams.records import RecordFiles as RecordFiles
from genesis_fn.data.streams.shuffling import Mixture as Mixture, Shuffled as Shuffled
from genesis_fn.data.streams.stream import Mapped as Mapped, Stream as Stream
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
