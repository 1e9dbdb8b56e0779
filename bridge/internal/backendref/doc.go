// Package backendref holds the backend of one database, which a reload of the config can replace.
//
// It uses the package backends only. Start reading at Ref.
package backendref
