package protocol

// kind is the type of a value, as far as both codecs distinguish it.
type kind uint8

const (
	kindNone   kind = iota // the end, or a fault
	kindNull               //
	kindBool               //
	kindNumber             // an integer or not: see source.integer
	kindText               //
	kindBytes              // msgpack bin
	kindList               //
	kindMap                //
	kindExt                // msgpack extension
)

func (k kind) String() string {
	return [...]string{"nothing", "null", "a boolean", "a number", "text", "bytes", "a list", "a map", "an extension type"}[k]
}

// intFault is why a number isn't a valid integer.
type intFault uint8

const (
	intOK intFault = iota
	intNotWhole
	intTooLarge
)

// source reads the values of one message in order. The caller checks kind and calls the method for
// it. Views are valid until the next call.
//
// After a fault (broken JSON), kind is kindNone and the loops over maps and lists end.
type source interface {
	kind() kind
	null()
	boolean() bool
	integer() (int64, intFault)
	view() []byte // bytes of a text or bytes value, not checked for UTF-8

	// Loop over a map or list: n := start(); for i := 0; next(i, n); i++ { … }. n is the length, or
	// -1 if only next finds the end.
	start() (n int)
	next(i, n int) bool
	name() (view []byte, ok bool) // the next key of a map; ok is false if it isn't text

	skip() // skips one value of any kind
	// mark returns the position before a key. resume continues after that key's value, wherever
	// reading stopped in between.
	mark() int
	resume(mark int)

	fault() *Error
	end() *Error // nil if nothing follows the message
}
