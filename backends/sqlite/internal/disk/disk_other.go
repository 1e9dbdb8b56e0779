//go:build !linux

package disk

import "errors"

// These functions only work on Linux.

const ReadWrite, WriteIn = 0, 0

func Owner(string) string              { return "another user" }
func Access(string, uint32) error      { return nil }
func FreeSpace(string) (uint64, error) { return 0, errors.ErrUnsupported }
func NetworkFS(string) (string, error) { return "", nil }
func Writer(string) (int, error)       { return 0, errors.ErrUnsupported }
func Users(string) []int               { return nil }
