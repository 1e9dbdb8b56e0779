package postgres

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// TestWrongPasswordIsOneLine shows that the error of a login is the server's answer, without the tries of the driver before it: with
// TLS, which the server doesn't have. (No test server here asks for a password, so this one plays the first messages.)
func TestWrongPasswordIsOneLine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				ended <- nil
				return
			}
			if err == nil {
				err = refuseLogin(conn)
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	_, err = Open(t.Context(), Options{URL: "postgres://app:wrong@" + l.Addr().String() + "/main"})
	if err := errors.Join(l.Close(), <-ended); err != nil {
		t.Fatal(err)
	}
	if err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "TLS") ||
		!strings.Contains(err.Error(), `can't connect as the user app to the database main: `) || !strings.Contains(err.Error(), `password authentication failed for user "app"`) {
		t.Errorf("the error is %v", err)
	}
}

func refuseLogin(conn net.Conn) error {
	b := pgproto3.NewBackend(conn, conn)
	first, err := b.ReceiveStartupMessage()
	if err != nil {
		return err
	}
	if _, tls := first.(*pgproto3.SSLRequest); tls {
		_, err := conn.Write([]byte("N"))
		return errors.Join(err, conn.Close())
	}
	b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: `password authentication failed for user "app"`})
	return errors.Join(b.Flush(), conn.Close())
}

// TestAnotherServiceAnswers shows that the error names the port if what answers there isn't PostgreSQL.
func TestAnotherServiceAnswers(t *testing.T) {
	t.Parallel()
	for service, text := range map[string]string{
		"MySQL": "\x4a\x00\x00\x00\x0a9.7.0\x00", "Redis": "-ERR unknown command\r\n", "HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "SSH": "SSH-2.0-OpenSSH_9.2\r\n",
	} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for {
					conn, err := l.Accept()
					if err != nil {
						return // closed
					}
					_, _ = conn.Read(make([]byte, 512)) // the login, or the request for TLS
					_, _ = conn.Write([]byte(text))
					_ = conn.Close()
				}
			}()
			_, err = Open(t.Context(), Options{URL: "postgres://app:p@" + l.Addr().String() + "/main"})
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			<-ended
			if err == nil || !strings.Contains(err.Error(), l.Addr().String()) || !strings.Contains(err.Error(), "what answers isn't PostgreSQL") || strings.Contains(err.Error(), "TLS") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
