package session

// Flag returns 1 if b is true, or else 0.
func Flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Positive returns n, or NULL if n is 0 or less.
func Positive(n int64) any {
	if n <= 0 {
		return nil
	}
	return n
}

// OrNull returns s, or NULL if s is empty.
func OrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// Nullable converts b to an argument: nil is NULL, and an empty slice is an empty value.
func Nullable(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}
