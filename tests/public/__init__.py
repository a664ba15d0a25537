"""Every public function on generated arguments, against itself under every transform."""
