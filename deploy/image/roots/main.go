// Command roots prints the certificates that the image trusts, as PEM. They are those of Mozilla's
// programme, in the version of the module in go.mod, so that a checkout gives the same image on
// every machine.
package main

import (
	"bufio"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "roots:", err)
		os.Exit(1)
	}
}

func write() error {
	out := bufio.NewWriter(os.Stdout)
	written := 0
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // partly trusted, which PEM can't express
		}
		if err := pem.Encode(out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return err
		}
		written++
	}
	if written == 0 {
		return errors.New("the module has no certificate without a constraint")
	}
	return out.Flush()
}
