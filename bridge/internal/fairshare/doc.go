// Package fairshare splits each commit between the sessions whose writes wait.
//
// It knows sessions as keys only. Start reading at Share.
package fairshare
