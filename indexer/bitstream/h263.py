from framedex.indexer.bitstream.sequential import SequentialScanner as H263Scanner
from framedex.indexer.bitstream.sequential import SequentialScanner as Flv1Scanner
