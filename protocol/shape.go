package protocol

import (
	"encoding/binary"
	"errors"
)

// maxDepth is how deep a message can nest. Requests need 4 levels. The rest is for reply fields of
// later versions, which clients skip.
const maxDepth = 16

var (
	errTruncated = errors.New("a length points beyond its end")
	errTooDeep   = errors.New("it nests deeper than 16 levels")
	errTrailing  = errors.New("bytes follow it")
	errReserved  = errors.New("it holds the reserved type byte c1")
)

// checkShape walks one msgpack value without recursion or allocation. It checks that every length
// fits in b, that nesting stays within maxDepth and that nothing follows. The msgpack library
// trusts declared lengths and recurses without limit, so checkShape runs before any decoding.
func checkShape(b []byte) error {
	var left [maxDepth + 1]uint64 // number of values still missing at each open level
	depth := 0
	left[0] = 1
	for {
		for left[depth] == 0 {
			if depth--; depth < 0 {
				if len(b) != 0 {
					return errTrailing
				}
				return nil
			}
		}
		left[depth]--
		size, children, err := measure(b)
		if err != nil {
			return err
		}
		b = b[size:]
		if children == 0 {
			continue
		}
		if children > uint64(len(b)) { // each value needs at least one byte
			return errTruncated
		}
		if depth++; depth > maxDepth {
			return errTooDeep
		}
		left[depth] = children
	}
}

// measure measures the value at the start of b: size bytes of its own (head, and body of a scalar),
// followed by children values.
func measure(b []byte) (size int, children uint64, err error) {
	if len(b) == 0 {
		return 0, 0, errTruncated
	}
	c := b[0]
	switch {
	case c <= 0x7f || c >= 0xe0: // fixint
		return 1, 0, nil
	case c <= 0x8f: // fixmap
		return 1, 2 * uint64(c&0x0f), nil
	case c <= 0x9f: // fixarray
		return 1, uint64(c & 0x0f), nil
	case c <= 0xbf: // fixstr
		return measureScalar(b, 1, uint64(c&0x1f))
	}
	h := typeHeads[c-0xc0]
	if h.kind == headReserved {
		return 0, 0, errReserved
	}
	head := 1 + int(h.lenBytes)
	if len(b) < head {
		return 0, 0, errTruncated
	}
	n := uint64(0)
	switch h.lenBytes {
	case 1:
		n = uint64(b[1])
	case 2:
		n = uint64(binary.BigEndian.Uint16(b[1:]))
	case 4:
		n = uint64(binary.BigEndian.Uint32(b[1:]))
	}
	switch h.kind {
	case headArray:
		return head, n, nil
	case headMap:
		return head, 2 * n, nil
	}
	return measureScalar(b, head, n+uint64(h.extra))
}

// measureScalar measures a scalar of head and body bytes. It fails if b is shorter.
func measureScalar(b []byte, head int, body uint64) (int, uint64, error) {
	if body > uint64(len(b)-head) {
		return 0, 0, errTruncated
	}
	return head + int(body), 0, nil
}

type headKind uint8

const (
	headScalar headKind = iota
	headArray
	headMap
	headReserved
)

// typeHeads describes the type bytes c0 to df: the number of length bytes, and the bytes of the value
// that the length does not include.
var typeHeads = [32]struct {
	kind     headKind
	lenBytes uint8
	extra    uint8
}{
	0x00: {},                   // nil
	0x01: {kind: headReserved}, // never used
	0x02: {}, 0x03: {},         // false, true
	0x04: {lenBytes: 1}, 0x05: {lenBytes: 2}, 0x06: {lenBytes: 4}, // bin
	0x07: {lenBytes: 1, extra: 1}, 0x08: {lenBytes: 2, extra: 1}, 0x09: {lenBytes: 4, extra: 1}, // ext
	0x0a: {extra: 4}, 0x0b: {extra: 8}, // float
	0x0c: {extra: 1}, 0x0d: {extra: 2}, 0x0e: {extra: 4}, 0x0f: {extra: 8}, // uint
	0x10: {extra: 1}, 0x11: {extra: 2}, 0x12: {extra: 4}, 0x13: {extra: 8}, // int
	0x14: {extra: 2}, 0x15: {extra: 3}, 0x16: {extra: 5}, 0x17: {extra: 9}, 0x18: {extra: 17}, // fixext
	0x19: {lenBytes: 1}, 0x1a: {lenBytes: 2}, 0x1b: {lenBytes: 4}, // str
	0x1c: {kind: headArray, lenBytes: 2}, 0x1d: {kind: headArray, lenBytes: 4},
	0x1e: {kind: headMap, lenBytes: 2}, 0x1f: {kind: headMap, lenBytes: 4},
}
