package protocol

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// The hot pair: claim one, ack one, with a payload of 100 bytes.
var (
	benchLease = "1.k3J9sQ2LmXw0aB7c.9223372036854775807.1f2e3d4c5b6a7988.4096"
	benchClaim = Request{ID: NumberID(1234), Op: OpClaim, Queue: "mail"}
	benchAck   = Request{ID: NumberID(1235), Op: OpAck, Lease: benchLease}
	benchJob   = Reply{ID: NumberID(1234), OK: true, Jobs: []Job{{ID: "9223372", Queue: "mail", Lease: benchLease,
		Payload: bytes.Repeat([]byte("x"), 100), Attempt: 1, MaxAttempts: 20, Fence: 17, EnqueuedAt: 1_790_000_000_000}}}
	benchAcked = Reply{ID: NumberID(1235), OK: true, Settled: &Settled{Verb: "acked", Count: 1, Lost: []string{}}}
)

// body is a message without its framing.
func body(c Codec, b []byte) []byte {
	if c == Msgpack {
		return b[4:]
	}
	return b[:len(b)-1]
}

func eachCodec[T testing.TB](t interface {
	Run(string, func(T)) bool
}, f func(t T, c Codec)) {
	for _, c := range []Codec{Msgpack, JSON} {
		t.Run(c.String(), func(t T) { f(t, c) })
	}
}

func BenchmarkDecodeClaimAndAck(b *testing.B) {
	eachCodec(b, func(b *testing.B, c Codec) {
		claim, ack := body(c, c.AppendRequest(nil, &benchClaim)), body(c, c.AppendRequest(nil, &benchAck))
		l := NewLimits(DefaultMaxFrame)
		b.ReportAllocs()
		var r Request
		for b.Loop() {
			if err := c.DecodeRequest(claim, l, &r); err != nil {
				b.Fatal(err)
			}
			if err := c.DecodeRequest(ack, l, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncodeClaimAndAck(b *testing.B) {
	eachCodec(b, func(b *testing.B, c Codec) {
		b.ReportAllocs()
		var dst []byte
		for b.Loop() {
			dst = c.AppendReply(dst[:0], &benchJob)
			dst = c.AppendReply(dst[:0], &benchAcked)
		}
	})
}

func BenchmarkClientClaimAndAck(b *testing.B) {
	eachCodec(b, func(b *testing.B, c Codec) {
		claimed, acked := body(c, c.AppendReply(nil, &benchJob)), body(c, c.AppendReply(nil, &benchAcked))
		b.ReportAllocs()
		var dst []byte
		var r Reply
		for b.Loop() {
			dst = c.AppendRequest(dst[:0], &benchClaim)
			if err := c.DecodeReply(claimed, &r); err != nil {
				b.Fatal(err)
			}
			dst = c.AppendRequest(dst[:0], &benchAck)
			if err := c.DecodeReply(acked, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	eachCodec(b, func(b *testing.B, c Codec) {
		var stream []byte
		for range 100 {
			stream = c.AppendRequest(stream, &benchClaim)
			stream = c.AppendRequest(stream, &benchAck)
		}
		in := strings.NewReader(string(stream))
		b.ReportAllocs()
		r := NewReader(in, DefaultMaxFrame)
		n := 0
		for b.Loop() {
			_, _, err := r.Next()
			if errors.Is(err, io.EOF) {
				in.Reset(string(stream))
				*r = *NewReader(in, DefaultMaxFrame)
				continue
			}
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
	})
}
