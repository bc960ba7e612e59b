package memconn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

func connect(t testing.TB, size int) (client, server net.Conn) {
	l := Listen(size)
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	client, err := l.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return client, <-accepted
}

// A connection meets the requirements of net.Conn.
func TestConnIsANetConn(t *testing.T) {
	nettest.TestConn(t, func() (client, server net.Conn, stop func(), err error) {
		client, server = connect(t, 1<<12)
		return client, server, func() { client.Close(); server.Close() }, nil
	})
}

// A writer waits while the buffer is full. A reader can read the data that was written before the end.
func TestABufferHoldsSoMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 10
		client, server := connect(t, size)
		written := make(chan error, 1)
		go func() {
			_, err := client.Write(bytes.Repeat([]byte{1}, size+1))
			written <- err
		}()
		synctest.Wait()
		select {
		case err := <-written:
			t.Fatalf("Write wrote %d bytes without a reader (%v)", size+1, err)
		default:
		}
		if n, err := server.Read(make([]byte, 2*size)); n != size || err != nil {
			t.Errorf("Read returned %d bytes (%v), want %d", n, err, size)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
		client.Close()
		if rest, err := io.ReadAll(server); len(rest) != 1 || err != nil {
			t.Errorf("read %d bytes at the end (%v), want 1", len(rest), err)
		}
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := connect(t, 1)
		began := time.Now()
		_ = client.SetDeadline(began.Add(time.Second))
		_ = client.SetDeadline(began.Add(time.Minute))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("Read after %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Second) // both deadlines have passed
		if n, err := client.Write(make([]byte, 2)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write: %d bytes, %v", n, err)
		}
		_ = client.SetDeadline(time.Time{})
		if n, err := client.Write(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("Write without a deadline: %d bytes, %v", n, err)
		}
	})
}

func TestAListenerThatIsClosed(t *testing.T) {
	l := Listen(1)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.DialContext(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("DialContext without Accept: %v", err)
	}
	l.Close()
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if _, err := l.DialContext(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("DialContext: %v", err)
	}
}
