package protocol

import (
	"strings"
	"testing"
)

// hostileMsgpack are bodies of frames that try to exhaust memory or stack.
var hostileMsgpack = map[string]string{
	"five bytes":        "\xdd\xff\xff\xff\xff",
	"a huge map":        "\xdf\xff\xff\xff\xff",
	"a megabyte of 91":  strings.Repeat("\x91", 1<<20),
	"nested maps":       strings.Repeat("\x81\xa1a", 1<<18),
	"a huge text":       "\x81\xa2op\xdb\xff\xff\xff\xff",
	"huge bytes":        "\x81\xa7payload\xc6\xff\xff\xff\xff",
	"a huge extension":  "\x81\xa2op\xc9\xff\xff\xff\xff\x00",
	"truncated":         "\x82\xa2op\xa4ping\xa2id",
	"trailing":          "\x81\xa2op\xa4ping\xc0",
	"duplicate keys":    "\x82\xa2op\xa4ping\xa2op\xa4ping",
	"invalid utf-8":     "\x82\xa2op\xa4ping\xa2id\xa2\xc3\x28",
	"a million fields":  "\xdf\x00\x10\x00\x00" + strings.Repeat("\xa1a\xc0", 1<<20),
	"a million jobs":    "\x82\xa2op\xa7enqueue\xa4jobs\xdd\x00\x10\x00\x00" + strings.Repeat("\x80", 1<<20),
	"a million leases":  "\x82\xa2op\xa3ack\xa6leases\xdd\x00\x10\x00\x00" + strings.Repeat("\xa0", 1<<20),
	"a million headers": "\x83\xa2op\xa7enqueue\xa5queue\xa1q\xa7headers\xdf\x00\x10\x00\x00" + strings.Repeat("\xa0\xa0", 1<<20),
	"a wide unknown":    "\x82\xa3foo\xdd\x00\x10\x00\x00" + strings.Repeat("\x01", 1<<20) + "\xa2op\xa4ping",
	"a million queues":  "\x82\xa2ok\xc3\xa6queues\xdd\x00\x10\x00\x00" + strings.Repeat("\x80", 1<<20),
	"a million errors":  "\x82\xa2ok\xc3\xa4jobs\x91\x81\xa6errors\xdd\x00\x10\x00\x00" + strings.Repeat("\x80", 1<<20),
	"a million lost":    "\x82\xa2ok\xc3\xa4lost\xdd\x00\x10\x00\x00" + strings.Repeat("\xa0", 1<<20),
	"a long id":         "\x82\xa2op\xa4ping\xa2id\xda\xff\xff" + strings.Repeat("x", 65535),
}

var hostileJSON = map[string]string{
	"nested lists":      `{"op":` + strings.Repeat("[", 1<<20),
	"nested objects":    `{"op":"ping","x":` + strings.Repeat(`{"x":`, 1<<17),
	"a million fields":  `{"op":"ping"` + strings.Repeat(`,"x":1`, 1<<18) + `}`,
	"a million jobs":    `{"op":"enqueue","jobs":[{}` + strings.Repeat(`,{}`, 1<<18) + `]}`,
	"a million names":   `{"op":"ping","x":{"a":1` + strings.Repeat(`,"a":1`, 1<<18) + `}}`,
	"a long number":     `{"op":"claim","queue":"q","max":` + strings.Repeat("9", 1<<20) + `}`,
	"a long name":       `{"` + strings.Repeat("x", 1<<20) + `":1}`,
	"escapes":           `{"op":"ping","id":"` + strings.Repeat(`\u0041`, 1<<17) + `"}`,
	"invalid utf-8":     "{\"op\":\"ping\",\"id\":\"\xc3\x28\"}",
	"a lone surrogate":  `{"op":"ping","id":"\ud800"}`,
	"duplicate keys":    `{"op":"ping","op":"ping"}`,
	"a million headers": `{"op":"enqueue","queue":"q","headers":{"a":""` + strings.Repeat(`,"a":""`, 1<<18) + `}}`,
	"trailing":          `{"op":"ping"}]`,
	"another codec":     "\x81\xa2op\xa4ping",
}

// TestHostileMessagesUseLittleMemory checks that reading a hostile message uses little memory beside its
// bytes, whatever lengths it declares, and that it is rejected.
func TestHostileMessagesUseLittleMemory(t *testing.T) {
	l := NewLimits(DefaultMaxFrame)
	for c, messages := range map[Codec]map[string]string{Msgpack: hostileMsgpack, JSON: hostileJSON} {
		for name, m := range messages {
			b := []byte(m)
			var err *Error
			var r Request
			got := allocated(func() { err = c.DecodeRequest(b, l, &r) })
			if got > uint64(64<<10+2*len(b)) { // a text with escapes is decoded into a copy that grows

				t.Errorf("%v, %s (%d bytes): took %d bytes of memory", c, name, len(b), got)
			}
			if err == nil {
				t.Errorf("%v, %s: was read as a request", c, name)
			}
		}
	}
}

// TestHostileRepliesUseLittleMemory checks that a client does not trust its server's lengths, and that
// lists of small elements use proportionate memory.
func TestHostileRepliesUseLittleMemory(t *testing.T) {
	for name, m := range hostileMsgpack {
		b := []byte(m)
		var r Reply
		var err error
		got := allocated(func() { err = Msgpack.DecodeReply(b, &r) })
		if got > uint64(1<<20+20*len(b)) { // an empty text is a string header of 16 bytes

			t.Errorf("%s (%d bytes): took %d bytes of memory", name, len(b), got)
		}
		if err == nil {
			t.Errorf("%s: was read as a reply", name)
		}
	}
}
