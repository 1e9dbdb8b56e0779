// Package fairshare splits each commit between the sessions whose writes wait.
//
// It uses sessions only as keys. Start reading at Share.
package fairshare
