package main

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// A listener counts control frames as they are after decryption: a client that sends too many
// loses its connection, with TLS and without, and others are served.
func TestControlFramesAreBoundedWithAndWithoutTLS(t *testing.T) {
	const config = `listeners:
  - address: 127.0.0.1:0
TLSauthorities:
  - name: onprem
    directory: resources
old_style_names:
  - authority: onprem
`
	for _, test := range []struct {
		name, listener string
		encrypted      bool
	}{
		{"plaintext", "", false},
		{"TLS", "    tls: {cert_file: cert.pem, key_file: key.pem}\n", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inFolder(t, map[string]string{"relay.yaml": strings.Replace(config, "TLS", test.listener, 1), "resources/cart.yaml": cartYAML})
			client := &tls.Config{RootCAs: writeCertificate(t), NextProtos: []string{"h2"}, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
			server, stop := startServe(t, "relay.yaml")

			conn, err := net.DialTimeout("tcp", server, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			creds := insecure.NewCredentials()
			if test.encrypted {
				conn, creds = tls.Client(conn, client), credentials.NewTLS(client)
			}
			if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, conn) }() // the acknowledgements
			framer := http2.NewFramer(conn, nil)
			sent := 0
			for ; err == nil && sent < 1_000_000; sent++ {
				err = framer.WriteSettings()
			}
			if err == nil {
				t.Errorf("the relay has taken %d SETTINGS", sent)
			}
			_ = conn.Close()

			good, err := grpc.NewClient(server, grpc.WithTransportCredentials(creds))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = good.Close() }()
			s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(good).DeltaAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}); err != nil {
				t.Fatal(err)
			}
			if resp, err := s.Recv(); err != nil || len(resp.GetResources()) != 1 {
				t.Errorf("another client is sent %v, %v", resp, err)
			}
			if log, status := stop(); status != 0 || strings.Count(log, "limit=control_frames max=500") != 1 {
				t.Errorf("the relay ends with %d, and has logged %s", status, log)
			}
		})
	}
}
