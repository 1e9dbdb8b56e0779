package outbox

import (
	"io"
	"sync"
)

// MaxBytes is how many bytes can wait for a client that does not read before Post blocks. One reply can exceed it.
const MaxBytes = 1 << 20

// scarceBytes is MaxBytes while the memory for all sessions is used up.
const scarceBytes = 16 << 10

// chunkBytes is the maximum size of one write. After each write the client counts as reading.
const chunkBytes = 256 << 10

// keptBytes is the largest buffer that is reused for the next reply.
const keptBytes = 64 << 10

// Outbox writes a connection's messages whole and in order. A sender that finds no write under way also writes the
// messages that other senders queue in the meantime. So a burst of small replies is one system call.
type Outbox struct {
	To      io.Writer
	Unread  func(n int64) // adds bytes that wait, and with a negative n removes them; nil: nothing counts
	HasRoom func() bool   // reports whether memory is free; nil: always

	mu      sync.Mutex
	buf     []byte // waiting to be written
	spare   []byte
	writing bool
	below   chan struct{} // closed when buf fell below the mark; nil: no session waits
	err     error
}

// Post queues one message, which build appends to the buffer. If first is true, no write is under way, and the caller
// must call Flush. Post blocks while MaxBytes wait. An error is final: the connection cannot be written to any more.
func (o *Outbox) Post(build func([]byte) []byte) (first bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil && o.full() {
		if o.below == nil {
			o.below = make(chan struct{})
		}
		below := o.below
		o.mu.Unlock()
		<-below
		o.mu.Lock()
	}
	if o.err != nil {
		return false, o.err
	}
	before := len(o.buf)
	o.buf = build(o.buf)
	o.addUnread(len(o.buf) - before)
	first, o.writing = !o.writing, true
	return first, nil
}

// full reports whether senders must wait until the client reads. o.mu is held.
func (o *Outbox) full() bool {
	return len(o.buf) >= MaxBytes || len(o.buf) >= scarceBytes && o.writing && o.HasRoom != nil && !o.HasRoom()
}

func (o *Outbox) addUnread(n int) {
	if o.Unread != nil {
		o.Unread(int64(n))
	}
}

// write writes out in chunks and counts them.
func (o *Outbox) write(out []byte) error {
	for len(out) > 0 {
		n := min(len(out), chunkBytes)
		_, err := o.To.Write(out[:n])
		if err != nil {
			n = len(out)
		}
		o.addUnread(-n)
		if out = out[n:]; err != nil {
			return err
		}
	}
	return nil
}

// Flush writes everything that is queued.
func (o *Outbox) Flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil && len(o.buf) > 0 {
		out := o.buf
		o.buf, o.spare = o.spare[:0], nil
		o.wakeWaiting()
		o.mu.Unlock()
		err := o.write(out)
		o.mu.Lock()
		o.err = err
		if cap(out) <= keptBytes {
			o.spare = out
		}
	}
	o.writing = false
	o.wakeWaiting()
	return o.err
}

// wakeWaiting wakes the senders that wait for space. o.mu is held.
func (o *Outbox) wakeWaiting() {
	if o.below != nil {
		close(o.below)
		o.below = nil
	}
}

// Fail ends the outbox: waiting and later sends return err.
func (o *Outbox) Fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	o.addUnread(-len(o.buf))
	o.buf, o.spare = nil, nil
	o.wakeWaiting()
}
