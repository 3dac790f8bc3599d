from framedex.indexer.bitstream.sequential import SequentialScanner as Ffv1Scanner
