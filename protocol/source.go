package protocol

// kind is the type of a value, as far as both codecs tell it.
type kind uint8

const (
	kindNone   kind = iota // the end, or a fault
	kindNull               //
	kindBool               //
	kindNumber             // integer or not: see source.integer
	kindText               //
	kindBytes              // msgpack bin
	kindList               //
	kindMap                //
	kindExt                // msgpack extension
)

func (k kind) String() string {
	return [...]string{"nothing", "null", "a boolean", "a number", "text", "bytes", "a list", "a map", "an extension type"}[k]
}

// integer's answers.
type intFault uint8

const (
	intOK intFault = iota
	intNotWhole
	intTooLarge
)

// source reads the values of one message in order. The caller looks at kind and
// calls the method for it. Views are valid until the next call.
//
// A fault (broken JSON) ends everything: kind is kindNone and the loops end.
type source interface {
	kind() kind
	null()
	boolean() bool
	integer() (int64, intFault)
	view() []byte // of text or bytes, without a check of its UTF-8

	// A map or list: n := start(); for i := 0; next(i, n); i++ { … }. n is its
	// length, or -1 where only next finds the end.
	start() (n int)
	next(i, n int) bool
	name() (view []byte, ok bool) // a map's next key; !ok: it is not text

	skip() // one value of any kind
	// mark is a place before a key; resume goes on behind that key's value,
	// wherever reading stopped since.
	mark() int
	resume(mark int)

	fault() *Error
	end() *Error // nil if nothing follows the message
}
