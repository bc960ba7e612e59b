package interop

// What the gRPC clients say about themselves in their Client Status Discovery Service.

import (
	"context"
	"fmt"
	"slices"
	"strings"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
)

// statusOfClient observes which resources the client has, with their content and status. It knows all shops
// of the scenarios before.
func statusOfClient(l *lane) observation {
	var text string
	eventually(l.t, "the client has acknowledged everything", func() (err error) {
		text, err = l.status()
		switch {
		case err != nil:
			return err
		case strings.Contains(text, "REQUESTED"):
			return fmt.Errorf("it has requested resources:\n%s", text)
		case !strings.Contains(text, "ACKED"):
			return fmt.Errorf("it has acknowledged nothing:\n%s", text)
		}
		return nil
	})
	return observation{text: text}
}

// status returns the client's resources, sorted, without versions and times.
func (l *lane) status() (string, error) {
	a, err := l.client.ask("csds")
	if err != nil {
		return "", err
	}
	conn, err := grpc.NewClient(a.CSDS, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	reply, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(ctx, &statusv3.ClientStatusRequest{})
	if err != nil {
		return "", err
	}
	var resources []string
	for _, config := range reply.GetConfig() {
		for _, r := range config.GetGenericXdsConfigs() {
			r.VersionInfo, r.LastUpdated = "", nil
			text, err := prototext.MarshalOptions{Multiline: false}.Marshal(r)
			if err != nil {
				return "", err
			}
			// prototext adds spaces at random.
			resources = append(resources, strings.Join(strings.Fields(string(text)), " "))
		}
	}
	slices.Sort(resources)
	return strings.Join(resources, "\n"), nil
}
