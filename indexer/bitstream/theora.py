from framedex.indexer.bitstream.sequential import SequentialScanner as TheoraScanner
