package protocol

// The constructors of fields. The arguments are the field's name, its limits and its location in M.

func isText[M any, T ~string](s string, limit int, at func(*M) *T) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return *at(m) != "" },
		read: func(d *decoder, m *M) *Error {
			v, err := d.text(s, limit)
			*at(m) = T(v)
			return err
		},
		write: func(e *encoder, n *name, m *M) { e.name(n); e.text(string(*at(m))) },
	}
}

func isInt[M any](s string, lo, hi int64, at func(*M) *int64) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return *at(m) != 0 },
		read: func(d *decoder, m *M) (err *Error) {
			*at(m), err = d.integer(s, lo, hi)
			return err
		},
		write: func(e *encoder, n *name, m *M) { e.name(n); e.integer(*at(m)) },
	}
}

func isOptInt[M any](s string, lo, hi int64, at func(*M) *Opt[int64]) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return at(m).Set },
		read: func(d *decoder, m *M) *Error {
			v, err := d.integer(s, lo, hi)
			*at(m) = Some(v)
			return err
		},
		write: func(e *encoder, n *name, m *M) { e.name(n); e.integer(at(m).Value) },
	}
}

func isBool[M any](s string, at func(*M) *bool) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return *at(m) },
		read: func(d *decoder, m *M) (err *Error) {
			*at(m), err = d.boolean(s)
			return err
		},
		write: func(e *encoder, n *name, m *M) { e.name(n); e.boolean(*at(m)) },
	}
}

// isBytes is a bytes field. It is present if it is not nil.
func isBytes[M any](s string, at func(*M) *[]byte) field[M] {
	return field[M]{
		name:  newName(s),
		bytes: true,
		has:   func(m *M) bool { return *at(m) != nil },
		read: func(d *decoder, m *M) (err *Error) {
			*at(m), err = d.bytes(s)
			return err
		},
		write: func(e *encoder, n *name, m *M) { e.bytes(n, *at(m)) },
	}
}

// isTexts is a list of lo to hi texts. It is present if it is not nil.
func isTexts[M any](s string, lo, hi, limit int, at func(*M) *[]string) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return *at(m) != nil },
		read: func(d *decoder, m *M) *Error {
			to := at(m)
			if err := d.expect(s, kindList, "a list of texts"); err != nil {
				return err
			}
			return d.list(s, lo, hi,
				func(n int) { *to = make([]string, 0, n) },
				func(int) *Error {
					v, err := d.text(s, limit)
					*to = append(*to, v)
					return err
				})
		},
		write: func(e *encoder, n *name, m *M) {
			e.name(n)
			e.startList(len(*at(m)))
			for _, v := range *at(m) {
				e.element()
				e.text(v)
			}
			e.endList()
		},
	}
}

// isList is a list of lo to hi maps. It is present if it is not nil. check is called with each
// element.
func isList[M, E any](s string, lo, hi int, ms *message[E], at func(*M) *[]E, check func(*E, presence) *Error) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return *at(m) != nil },
		read: func(d *decoder, m *M) *Error {
			to := at(m)
			if err := d.expect(s, kindList, "a list of maps"); err != nil {
				return err
			}
			return d.list(s, lo, hi,
				func(n int) { *to = make([]E, 0, min(n, MaxList)) },
				func(int) *Error {
					if err := d.expectKind(s, kindMap); err != nil {
						return err
					}
					*to = append(*to, *new(E))
					el := &(*to)[len(*to)-1]
					p, err := ms.read(d, el)
					if err != nil || check == nil {
						return err
					}
					return check(el, p)
				})
		},
		write: func(e *encoder, n *name, m *M) { e.name(n); writeList(e, ms, *at(m)) },
	}
}

func writeList[E any](e *encoder, ms *message[E], list []E) {
	e.startList(len(list))
	for i := range list {
		e.element()
		ms.write(e, &list[i], everything)
	}
	e.endList()
}

// isMap is a nested map. It is present if get does not return nil.
func isMap[M, E any](s string, ms *message[E], get func(*M) *E, set func(*M, *E)) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return get(m) != nil },
		read: func(d *decoder, m *M) *Error {
			if err := d.expectKind(s, kindMap); err != nil {
				return err
			}
			v := new(E)
			_, err := ms.read(d, v)
			set(m, v)
			return err
		},
		write: func(e *encoder, n *name, m *M) { e.name(n); ms.write(e, get(m), everything) },
	}
}

// isHeaders is the map of headers. It is present if it is not empty.
func isHeaders[M any](s string, at func(*M) *map[string]string) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return len(*at(m)) > 0 },
		read: func(d *decoder, m *M) (err *Error) {
			*at(m), err = d.headers(s)
			return err
		},
		write: func(e *encoder, n *name, m *M) { e.name(n); e.headers(*at(m)) },
	}
}

// isWeights is a map of queues to weights. It is present if it is not nil.
func isWeights[M any](s string, at func(*M) *map[string]int64) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return *at(m) != nil },
		read: func(d *decoder, m *M) (err *Error) {
			*at(m), err = d.weights(s)
			return err
		},
		write: func(e *encoder, n *name, m *M) { e.name(n); e.weights(*at(m)) },
	}
}

func isID[M any](s string, at func(*M) *RequestID) field[M] {
	return field[M]{
		name: newName(s),
		has:  func(m *M) bool { return at(m).IsSet() },
		read: func(d *decoder, m *M) *Error {
			id, err := d.requestID(s)
			if err == nil {
				*at(m) = id
			}
			return err
		},
		write: func(e *encoder, n *name, m *M) { e.name(n); e.requestID(*at(m)) },
	}
}

// always makes a field present, whatever its value is.
func always[M any](f field[M]) field[M] {
	f.has = func(*M) bool { return true }
	return f
}

// presentIf makes a field present if has returns true.
func presentIf[M any](f field[M], has func(*M) bool) field[M] {
	f.has = has
	return f
}

// checked adds a check of the decoded message.
func checked[M any](f field[M], check func(*M) *Error) field[M] {
	read := f.read
	f.read = func(d *decoder, m *M) *Error {
		if err := read(d, m); err != nil {
			return err
		}
		return check(m)
	}
	return f
}

// nested makes a field of E a field of M, which contains an E. to finds or creates the E. has
// reports whether there is one to write.
func nested[M, E any](f field[E], has func(*M) bool, to func(*M) *E) field[M] {
	return field[M]{
		name:  f.name,
		bytes: f.bytes,
		has:   func(m *M) bool { return has(m) && f.has(to(m)) },
		read:  func(d *decoder, m *M) *Error { return f.read(d, to(m)) },
		write: func(e *encoder, n *name, m *M) { f.write(e, n, to(m)) },
	}
}
