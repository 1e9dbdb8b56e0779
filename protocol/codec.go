package protocol

// Codec is one of the two encodings of the same maps. A connection's first byte
// chooses it.
type Codec uint8

// The codecs.
const (
	Msgpack Codec = iota + 1 // 4-byte big-endian length, then one msgpack map
	JSON                     // one JSON object and \n
)
