package protocol

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// message describes the fields of one kind of map, once for both codecs and both directions.
type message[M any] struct {
	fields []field[M]
	index  map[string]entry
}

// entry finds a field by a name on the wire.
type entry struct {
	pos int
	b64 bool // the name is X_b64, which only JSON has
}

// field is one entry of a map: its location in M, when it is present, and how to read and write its
// value.
type field[M any] struct {
	name  name
	bytes bool // X or X_b64 in JSON
	has   func(m *M) bool
	read  func(d *decoder, m *M) *Error
	write func(e *encoder, n *name, m *M) // name and value
}

// name is a field's name, in plain form and as each codec writes it.
type name struct {
	plain   string
	msgpack []byte
	json    []byte // quoted, with the colon
	jsonB64 []byte
}

func newName(s string) name {
	quoted := func(s string) []byte {
		b, err := jsontext.AppendQuote(nil, s)
		if err != nil {
			panic(fmt.Sprintf("protocol: the field name %q is not text", s))
		}
		return append(b, ':')
	}
	if len(s) > 31 {
		panic(fmt.Sprintf("protocol: the field name %q is longer than a fixstr", s))
	}
	return name{
		plain:   s,
		msgpack: append([]byte{0xa0 | byte(len(s))}, s...),
		json:    quoted(s),
		jsonB64: quoted(s + "_b64"),
	}
}

func newMessage[M any](fields []field[M]) *message[M] {
	ms := &message[M]{fields: fields, index: make(map[string]entry, len(fields))}
	if len(fields) > 64 {
		panic("protocol: a message has more fields than a mask has bits")
	}
	for i, f := range fields {
		ms.index[f.name.plain] = entry{pos: i}
		if f.bytes {
			ms.index[f.name.plain+"_b64"] = entry{pos: i, b64: true}
		}
	}
	return ms
}

// presence is the set of fields that a message has, one bit for each position.
type presence uint64

// everything is the set of all fields.
const everything = ^presence(0)

func (p presence) has(pos int) bool { return p>>pos&1 == 1 }

// read reads one map into m and returns which fields it had. It stops at the first error.
func (ms *message[M]) read(d *decoder, m *M) (presence, *Error) {
	var seen, present presence
	n := d.src.start()
	for i := 0; d.src.next(i, n); i++ {
		if err := ms.readField(d, m, &seen, &present); err != nil {
			return present, err
		}
	}
	return present, d.src.fault()
}

// readField reads one entry of the map. seen also contains the fields that are null, because a
// field must not be repeated even then.
func (ms *message[M]) readField(d *decoder, m *M, seen, present *presence) *Error {
	view, ok := d.src.name()
	if err := d.src.fault(); err != nil {
		return err
	}
	if !ok {
		return Errorf(CodeBadRequest, "a key of the map is %v; keys are text", d.src.kind())
	}
	e, known := ms.index[string(view)]
	if !known || e.b64 && !d.json {
		return d.unknown(view, ms.index)
	}
	f := &ms.fields[e.pos]
	if seen.has(e.pos) {
		return BadField(f.name.plain, "%s is given twice", f.name.plain)
	}
	*seen |= 1 << e.pos
	if d.src.kind() == kindNull {
		d.src.null()
		return d.src.fault()
	}
	*present |= 1 << e.pos
	d.b64 = e.b64
	err := f.read(d, m)
	if fault := d.src.fault(); fault != nil {
		if fault.Field == "" && fault.Code == CodeBadRequest {
			fault.Field = f.name.plain
		}
		return fault
	}
	return err
}

// noField begins the error for an unknown field.
const noField = "there is no field"

// maxShownName is how many bytes of an unknown name an error quotes.
const maxShownName = 64

// unknown skips an unknown field of a reply. It rejects one in a request: if it ignored a misspelt
// field, the job would be wrong.
func (d *decoder) unknown(view []byte, known map[string]entry) *Error {
	if d.lenient {
		d.src.skip()
		return d.src.fault()
	}
	shown := string(bytes.ToValidUTF8(view[:min(len(view), maxShownName)], []byte("�")))
	switch shown {
	case "unique", "max_bytes":
		if d.src.kind() == kindNull {
			d.src.null()
			return d.src.fault()
		}
		return &Error{Code: CodeUnsupported, Field: shown,
			Message: shown + " is reserved for a later version; leave it out"}
	}
	if near := didYouMean(shown, known, otherFields); near != "" {
		return BadField(shown, "%s %q here%s", noField, shown, near)
	}
	return BadField(shown, "%s %q here; names are lower case and exact", noField, shown)
}

// write writes the fields of m that are present and in mask, as one map.
func (ms *message[M]) write(e *encoder, m *M, mask presence) {
	n := 0
	if !e.json {
		for i := range ms.fields {
			if mask.has(i) && ms.fields[i].has(m) {
				n++
			}
		}
	}
	e.startMap(n)
	for i := range ms.fields {
		if f := &ms.fields[i]; mask.has(i) && f.has(m) {
			f.write(e, &f.name, m)
		}
	}
	e.endMap()
}

// expectKind checks that the next value is of kind k.
func (d *decoder) expectKind(field string, k kind) *Error { return d.expect(field, k, k.String()) }

// expect is expectKind with a description of the value for the error.
func (d *decoder) expect(field string, k kind, description string) *Error {
	got := d.src.kind()
	if got == k {
		return nil
	}
	if err := d.src.fault(); err != nil {
		return err
	}
	return BadField(field, "%s must be %s, not %v", field, description, got)
}

// isSeconds reports whether an instant is probably in seconds. As milliseconds it is in the years 1970 to 1973. The checks of a
// plain INSERT reject these values too.
func isSeconds(instant int64) bool { return instant >= 1_000_000_000 && instant <= 99_999_999_999 }

// checkInstant rejects an instant in seconds: the job would be ready, or expired, at once.
func checkInstant(field string, v Opt[int64]) *Error {
	if !v.Set || !isSeconds(v.Value) {
		return nil
	}
	return BadField(field, "%s %d is in %s: write milliseconds since 1970, not seconds", field, v.Value, time.UnixMilli(v.Value).UTC().Format("January 2006"))
}

// numberOf describes the number that a field has.
func numberOf(field string) string {
	switch {
	case strings.HasSuffix(field, "_ms"):
		return "a number of milliseconds"
	case field == "run_at" || field == "start_before":
		return "a number (milliseconds since 1970, UTC)"
	}
	return kindNumber.String()
}

// text reads a text of at most limit bytes. A negative limit means no limit.
func (d *decoder) text(field string, limit int) (string, *Error) {
	if err := d.expectKind(field, kindText); err != nil {
		return "", err
	}
	view := d.src.view()
	if limit >= 0 && len(view) > limit && !d.lenient {
		return "", BadField(field, "%s is %d bytes long; at most %d are allowed", field, len(view), limit)
	}
	if err := d.checkText(field, view); err != nil {
		return "", err
	}
	return string(view), nil
}

func (d *decoder) checkText(field string, view []byte) *Error {
	if !d.json && !utf8.Valid(view) { // the JSON tokenizer has checked it
		return BadField(field, "%s is not valid UTF-8; only payload and result can contain other bytes", field)
	}
	if bytes.IndexByte(view, 0) >= 0 {
		return BadField(field, "%s contains a NUL character; only payload and result can", field)
	}
	return nil
}

func (d *decoder) integer(field string, lo, hi int64) (int64, *Error) {
	if err := d.expect(field, kindNumber, numberOf(field)); err != nil {
		return 0, err
	}
	n, fault := d.src.integer()
	if fault == intNotWhole {
		return 0, BadField(field, "%s must be an integer, written without fraction or exponent", field)
	}
	if fault == intTooLarge || n < lo || n > hi {
		return 0, BadField(field, "%s must be an integer from %d to %d", field, lo, hi)
	}
	return n, nil
}

func (d *decoder) boolean(field string) (bool, *Error) {
	if err := d.expectKind(field, kindBool); err != nil {
		return false, err
	}
	return d.src.boolean(), nil
}

// bytes reads a bytes field. It returns a copy, never nil.
func (d *decoder) bytes(field string) ([]byte, *Error) {
	if !d.json && d.src.kind() == kindBytes {
		return d.copied(field, d.src.view())
	}
	switch k := d.src.kind(); k {
	case kindBool, kindNumber, kindList, kindMap:
		return nil, BadField(field, `%s must be text, not %v: serialize the value first, for example as JSON: "%[1]s":"{\"to\":\"ada\"}"`, field, k)
	}
	if err := d.expectKind(field, kindText); err != nil {
		return nil, err
	}
	view := d.src.view()
	if !d.b64 {
		return d.copied(field, view)
	}
	n := base64.StdEncoding.DecodedLen(len(view))
	if n -= bytes.Count(view[max(0, len(view)-2):], []byte("=")); !d.lenient && n > d.limits.MaxPayload {
		return nil, d.tooLarge(field, n)
	}
	b := make([]byte, n+2) // Decode needs space for the padding too
	n, err := base64.StdEncoding.Strict().Decode(b, view)
	if err != nil || bytes.ContainsAny(view, "\r\n") {
		return nil, BadField(field, "%s_b64 is not base64 with padding (RFC 4648 section 4)", field)
	}
	return b[:n], nil
}

func (d *decoder) copied(field string, view []byte) (b []byte, err *Error) {
	if !d.lenient && len(view) > d.limits.MaxPayload {
		return nil, d.tooLarge(field, len(view))
	}
	return append(make([]byte, 0, len(view)), view...), nil
}

func (d *decoder) tooLarge(field string, n int) *Error {
	return &Error{Code: CodeTooLarge, Field: field,
		Message: fmt.Sprintf("%s is %d bytes long; at most %d are allowed (max_payload)", field, n, d.limits.MaxPayload)}
}

// list reads a list of lo to hi elements. It calls sized with the number of elements, or -1, before
// the first, and each for every element.
func (d *decoder) list(field string, lo, hi int, sized func(n int), each func(i int) *Error) *Error {
	if err := d.expectKind(field, kindList); err != nil {
		return err
	}
	n := d.src.start()
	wrong := func() *Error { return BadField(field, "%s must have %d to %d elements", field, lo, hi) }
	if n > hi {
		return wrong()
	}
	sized(max(n, 0))
	i := 0
	for ; d.src.next(i, n); i++ {
		if i == hi {
			return wrong()
		}
		if err := each(i); err != nil {
			if !err.Index.Set {
				err.Index = Some(int64(i))
			}
			err.Message = inElement(field, i, err.Message)
			return err
		}
	}
	if i < lo && d.src.fault() == nil {
		return wrong()
	}
	return d.src.fault()
}

// inElement adds the element of a list to a message: "ids[3] is …", "jobs[3]: priority must be …".
func inElement(field string, i int, message string) string {
	if rest, ok := strings.CutPrefix(message, field+" "); ok {
		return fmt.Sprintf("%s[%d] %s", field, i, rest)
	}
	return fmt.Sprintf("%s[%d]: %s", field, i, message)
}

func (d *decoder) headers(field string) (map[string]string, *Error) {
	if err := d.expectKind(field, kindMap); err != nil {
		return nil, err
	}
	n := d.src.start()
	h := make(map[string]string, max(0, min(n, MaxHeaders)))
	size := 0
	for i := 0; d.src.next(i, n); i++ {
		if i >= MaxHeaders && !d.lenient {
			return nil, BadField(field, "%s has more than %d entries", field, MaxHeaders)
		}
		if d.src.kind() != kindText && d.src.fault() == nil {
			return nil, BadField(field, "%s has a key that is %v; keys are text", field, d.src.kind())
		}
		k, err := d.text(field, MaxHeaderSize)
		if err != nil {
			return nil, err
		}
		if _, dup := h[k]; dup {
			return nil, BadField(field, "%s holds a key twice", field)
		}
		if d.src.kind() != kindText && d.src.fault() == nil {
			return nil, BadField(field, "%s: the value of %q is %v; values are text", field, k[:min(len(k), maxShownName)], d.src.kind())
		}
		v, err := d.text(field, MaxHeaderSize)
		if err != nil {
			return nil, err
		}
		if size += len(k) + len(v); size > MaxHeaderSize && !d.lenient {
			return nil, BadField(field, "%s hold more than %d bytes", field, MaxHeaderSize)
		}
		h[k] = v
	}
	return h, d.src.fault()
}

// weights reads a map of at most MaxList queues to their weights.
func (d *decoder) weights(field string) (map[string]int64, *Error) {
	if err := d.expectKind(field, kindMap); err != nil {
		return nil, err
	}
	n := d.src.start()
	w := make(map[string]int64, max(0, min(n, MaxList)))
	for i := 0; d.src.next(i, n); i++ {
		if i == MaxList {
			return nil, BadField(field, "%s has more than %d entries", field, MaxList)
		}
		if d.src.kind() != kindText && d.src.fault() == nil {
			return nil, BadField(field, "%s has a key that is %v; keys are queues", field, d.src.kind())
		}
		q, err := d.text(field, MaxQueueName)
		if err == nil {
			err = CheckQueueName(field, q)
		}
		if err != nil {
			return nil, err
		}
		if _, dup := w[q]; dup {
			return nil, BadField(field, "%s has the queue %q twice", field, q)
		}
		if w[q], err = d.integer(field, 1, MaxWeight); err != nil {
			err.Message = fmt.Sprintf("%s: the weight of %q%s", field, q, strings.TrimPrefix(err.Message, field))
			return nil, err
		}
	}
	return w, d.src.fault()
}

// requestID reads an unsigned integer or a text.
func (d *decoder) requestID(field string) (RequestID, *Error) {
	if d.src.kind() == kindText {
		s, err := d.text(field, MaxRequestID)
		return TextID(s), err
	}
	if k := d.src.kind(); k != kindNumber {
		return RequestID{}, BadField(field, "%s must be an unsigned integer or text, not %v", field, k)
	}
	n, err := d.integer(field, 0, MaxSafeInt)
	return NumberID(uint64(n)), err
}
