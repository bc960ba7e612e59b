package relay

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs"
)

// The relay sends peers the HTTP/2 settings of its configuration.

// preface is the beginning of an HTTP/2 connection.
type preface struct {
	stream, connection, streams uint32
}

// readPreface reads it; the window of the connection comes after the settings, if it is
// not HTTP/2's 64 KiB.
func readPreface(t *testing.T, r io.Reader) (is preface) {
	t.Helper()
	framer := http2.NewFramer(io.Discard, r)
	const unset = 1<<16 - 1
	is.stream, is.connection = unset, unset
	for is.connection == unset {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
				is.stream = v
			}
			is.streams, _ = f.Value(http2.SettingMaxConcurrentStreams)
		case *http2.WindowUpdateFrame:
			is.connection += f.Increment
		}
	}
	return is
}

func TestListenersTellTheirWindowsAndStreams(t *testing.T) {
	for _, tt := range []struct {
		listener string
		want     preface
	}{
		{`{address: "127.0.0.1:0"}`, preface{stream: 1 << 20, connection: 1 << 20}},
		{`{address: "127.0.0.1:0", windows: {stream: 64KiB, connection: 128KiB}, limits: {streams_per_connection: 7}}`,
			preface{stream: 64 << 10, connection: 128 << 10, streams: 7}},
	} {
		cfg, err := configs.Parse("relay.yaml", []byte("listeners: ["+tt.listener+"]\nauthorities: [{name: a, directory: .}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(cfg, Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := r.Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", r.Addresses()[0])
		if err != nil {
			t.Fatal(err)
		}
		if got := readPreface(t, conn); got != tt.want {
			t.Errorf("%s: clients receive %+v, want %+v", tt.listener, got, tt.want)
		}
		_ = conn.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestServersAreSentTheirWindows(t *testing.T) {
	for _, tt := range []struct {
		server string
		want   preface
	}{
		{"", preface{stream: 1 << 20, connection: 4 << 20}},
		{", windows: {stream: 2MiB, connection: 16MiB}", preface{stream: 2 << 20, connection: 16 << 20}},
	} {
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := configs.Parse("relay.yaml", []byte(`{listeners: [{address: ":1"}], authorities: [{name: a, servers: [{address: "`+l.Addr().String()+`"`+tt.server+`}]}]}`))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := dial(cfg.Authorities[0].Servers[0], certs.NewStore(slog.New(slog.DiscardHandler)).Part(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		opened := make(chan struct{})
		go func() {
			defer close(opened)
			_, _ = conn.NewStream(t.Context(), &grpc.StreamDesc{}, "/service/Method") // which connects
		}()
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(accepted, make([]byte, len(http2.ClientPreface))); err != nil {
			t.Fatal(err)
		}
		if got := readPreface(t, accepted); got != tt.want {
			t.Errorf("a server%s receives %+v, want %+v", tt.server, got, tt.want)
		}
		if err := errors.Join(conn.Close(), accepted.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		<-opened
	}
}
