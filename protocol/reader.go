package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	minBuffer  = 512      // an idle connection keeps this much
	nextBuffer = 4 << 10  // or this much, if a read has filled its buffer
	keepBuffer = 64 << 10 // a larger buffer is dropped once it is empty
	frameHead  = 4        // bytes of a frame's length prefix
	maxEmpty   = 100      // empty reads before giving up, as in package bufio
)

// Reader splits a stream of bytes into messages. Its memory grows with the bytes received, never
// with a declared length. It is not safe for concurrent use.
type Reader struct {
	// OnPartial, if set, is called with true before Reader waits for the rest of a message, and
	// with false once that message is complete. A session uses it to set a deadline. Reader calls
	// it at most once each for a message, and not for a message that one read brings whole. It does
	// not call it after an error.
	OnPartial func(bool)

	// OnBuffer, if set, is called before the buffer grows beyond its ordinary size, with the number
	// of bytes that the message can need: its declared length, or that of the longest line. It is
	// called with 0 when the buffer is small again. It can block. Next returns its error.
	OnBuffer func(size int) error

	rd       io.Reader
	maxFrame int
	codec    Codec
	buf      []byte // buf[start:end] was received and not returned yet
	start    int
	end      int
	seen     int  // bytes of buf[start:end] that are known to have no newline
	filled   bool // a read has filled the buffer
	partial  bool
	expected int   // the last argument of OnBuffer
	err      error // sticky
}

// NewReader returns a Reader of messages of at most maxFrame bytes, without framing, from rd.
func NewReader(rd io.Reader, maxFrame int) *Reader {
	return &Reader{rd: rd, maxFrame: maxFrame}
}

// Codec returns the codec that the first byte chose. It is 0 before that byte. It is JSON after a
// byte that is invalid, so that a person can read the error, and HTTP after the method of an HTTP request.
func (r *Reader) Codec() Codec { return r.codec }

// Partial reports whether the buffer has bytes that were not returned yet. They can be a whole
// message: call Next.
func (r *Reader) Partial() bool { return r.end > r.start }

// announce calls OnBuffer if the expected size changes.
func (r *Reader) announce(bytes int) error {
	if bytes == r.expected || r.OnBuffer == nil {
		return nil
	}
	if err := r.OnBuffer(bytes); err != nil {
		return err
	}
	r.expected = bytes
	return nil
}

// Buffered returns how many bytes were received and not returned yet.
func (r *Reader) Buffered() int { return r.end - r.start }

// Next returns the next message without its framing. body is valid until the next call.
//
// io.EOF is a clean end between messages. An *Error (bad_frame, too_large) is fatal: Reader can't
// trust the rest of the stream, and every later call returns the error again. Any other error is
// from the underlying reader. After a timeout, call Next again: it continues and loses no bytes.
func (r *Reader) Next() (body []byte, c Codec, err error) {
	if r.err == nil {
		body, r.err = r.next()
	}
	if err = r.err; err == nil {
		if r.partial {
			r.notify(false)
		}
		return body, r.codec, nil
	}
	var final *Error
	if !errors.Is(err, io.EOF) && !errors.As(err, &final) {
		r.err = nil
	}
	return nil, r.codec, err
}

func (r *Reader) notify(partial bool) {
	r.partial = partial
	if r.OnPartial != nil {
		r.OnPartial(partial)
	}
}

func (r *Reader) next() ([]byte, error) {
	if r.codec == 0 {
		if err := r.choose(); err != nil {
			return nil, err
		}
	}
	if r.codec == Msgpack {
		return r.frame()
	}
	return r.line()
}

func (r *Reader) choose() error {
	if err := r.fill(1); err != nil {
		return err
	}
	switch b := r.buf[r.start]; {
	case b <= 0x04:
		r.codec = Msgpack
	case b == '{' || blank(b):
		r.codec = JSON
	case b == '[':
		r.codec = JSON
		return Errorf(CodeBadFrame, "a message is one JSON object, and this begins with a list ([): send each of its objects as a line")
	case r.beginsHTTP():
		r.codec = HTTP
		return Errorf(CodeBadFrame, "this socket speaks JSON lines and msgpack frames, and not HTTP: send HTTP to the address of admin.listen in the sidecar's config")
	case b == 0xef:
		r.codec = JSON
		return Errorf(CodeBadFrame, "a byte order mark precedes the first message: send UTF-8 without it")
	case b == 0x16:
		r.codec = JSON
		return Errorf(CodeBadFrame, "this looks like TLS, which the socket doesn't speak: connect without it")
	default:
		r.codec = JSON
		return Errorf(CodeBadFrame, "%s", badFirst(b))
	}
	return nil
}

// beginsHTTP reports whether the input begins with a method of HTTP and a space. It reads on while that is possible.
func (r *Reader) beginsHTTP() bool {
	for _, method := range []string{"GET ", "PUT ", "POST ", "HEAD ", "PATCH ", "DELETE ", "OPTIONS "} {
		n := 0
		for n < len(method) && r.fill(n+1) == nil && r.buf[r.start+n] == method[n] {
			n++
		}
		if n == len(method) {
			return true
		}
	}
	return false
}

func badFirst(b byte) string {
	return fmt.Sprintf(`the first byte, 0x%02x, begins neither a msgpack frame (0x00 to 0x04) nor a JSON line such as {"op":"ping"}`, b)
}

func blank(b byte) bool { return b == '\n' || b == '\r' || b == ' ' || b == '\t' }

// frame returns the body of the next msgpack frame.
func (r *Reader) frame() ([]byte, error) {
	if err := r.fill(frameHead); err != nil {
		return nil, r.cutShort(err)
	}
	n := binary.BigEndian.Uint32(r.buf[r.start:])
	if uint64(n) > uint64(r.maxFrame) {
		return nil, Errorf(CodeTooLarge, "a frame of %d bytes is announced; at most %d are allowed (max_frame)", n, r.maxFrame)
	}
	if err := r.fill(frameHead + int(n)); err != nil {
		return nil, r.cutShort(err)
	}
	body := r.buf[r.start+frameHead : r.start+frameHead+int(n)]
	r.start += frameHead + int(n)
	return body, nil
}

// cutShort turns an end of input inside a frame into a bad_frame.
func (r *Reader) cutShort(err error) error {
	if errors.Is(err, io.EOF) && r.end > r.start {
		return Errorf(CodeBadFrame, "the input ended inside a frame, after %d of its bytes", r.end-r.start)
	}
	return err
}

// line returns the next JSON line that is not blank.
func (r *Reader) line() ([]byte, error) {
	for {
		have := r.buf[r.start:r.end]
		if r.seen == 0 && len(have) > 0 && blank(have[0]) {
			r.start++ // skip blanks before a message, so that they do not count as a partial message
			continue
		}
		if i := bytes.IndexByte(have[r.seen:], '\n'); i >= 0 {
			line := have[:r.seen+i]
			if len(trimCR(line)) > r.maxFrame {
				return nil, r.lineTooLarge()
			}
			r.start += len(line) + 1
			r.seen = 0
			return trimCR(line), nil
		}
		r.seen = len(have)
		if len(trimCR(have)) > r.maxFrame {
			return nil, r.lineTooLarge()
		}
		if err := r.fill(len(have) + 1); err != nil {
			return r.lastLine(err)
		}
	}
}

func (r *Reader) lineTooLarge() error {
	return Errorf(CodeTooLarge, "a line is longer than %d bytes (max_frame)", r.maxFrame)
}

func trimCR(line []byte) []byte { return bytes.TrimSuffix(line, []byte("\r")) }

// lastLine accepts a whole object that ends with the input instead of a newline.
func (r *Reader) lastLine(err error) ([]byte, error) {
	have := r.buf[r.start:r.end]
	if !errors.Is(err, io.EOF) || len(have) == 0 {
		return nil, err
	}
	if !jsontext.Value(have).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
		return nil, Errorf(CodeBadFrame, "the input ended inside a line, after %d bytes of it", len(have))
	}
	r.start, r.seen = r.end, 0
	return have, nil
}

// fill reads until at least n bytes are buffered.
func (r *Reader) fill(n int) error {
	for r.end-r.start < n {
		if r.end > r.start && !r.partial {
			r.notify(true)
		}
		if err := r.grow(n); err != nil {
			return err
		}
		if err := r.receive(); err != nil {
			return err
		}
	}
	return nil
}

// Shrink reduces the buffer to what it contains. Call it before a long time without Next. The last
// body that Next returned stays valid.
func (r *Reader) Shrink() error {
	have := r.end - r.start
	size := max(have, minBuffer)
	if len(r.buf) <= keepBuffer || size == len(r.buf) {
		return nil
	}
	buf := make([]byte, size)
	copy(buf, r.buf[r.start:r.end])
	r.buf, r.start, r.end = buf, 0, have
	if size <= keepBuffer {
		size = 0
	}
	return r.announce(size)
}

// receive does one read into the free space of the buffer.
func (r *Reader) receive() error {
	for range maxEmpty {
		n, err := r.rd.Read(r.buf[r.end:])
		r.end += n
		r.filled = r.filled || r.end == len(r.buf)
		if n > 0 {
			return nil // the next read returns the error again
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// grow makes space behind end for a message of n bytes. It can provide less than n: the buffer
// doubles as bytes arrive.
func (r *Reader) grow(n int) error {
	have := r.end - r.start
	if have == 0 {
		r.start, r.end = 0, 0
	}
	switch {
	case have == 0 && (len(r.buf) == 0 || len(r.buf) > keepBuffer || r.filled && len(r.buf) < nextBuffer):
		size := minBuffer
		if r.filled {
			size = nextBuffer
		}
		r.buf = make([]byte, size)
		if err := r.announce(0); err != nil {
			return err
		}
	case r.end < len(r.buf) && (r.start == 0 || r.start+n <= len(r.buf)):
		return nil
	case have <= len(r.buf)/2:
		copy(r.buf, r.buf[r.start:r.end])
	default:
		size := min(max(2*len(r.buf), nextBuffer), max(have+minBuffer, r.maxFrame+frameHead+2))
		if size > keepBuffer {
			most := n
			if r.codec != Msgpack {
				most = r.maxFrame
			}
			if err := r.announce(max(most, r.expected)); err != nil {
				return err
			}
		}
		grown := make([]byte, size)
		copy(grown, r.buf[r.start:r.end])
		r.buf = grown
	}
	r.start, r.end = 0, have
	return nil
}
