// Command grpcgo is a client of grpc-go with xDS. For each line of its input, a method, it sends an RPC to the
// target and prints which backend has answered. The line may also have another target, the value of the header
// "key" and a deadline in milliseconds. For the line "close TARGET", it closes the channel to a target. For the
// line "csds", it prints the address of its Client Status Discovery Service.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds" // the resolver
	"google.golang.org/grpc/xds/csds"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// outcome is the outcome of a line.
type outcome struct {
	Backend string     `json:"backend,omitempty"`
	Error   string     `json:"error,omitempty"`
	Code    codes.Code `json:"code,omitempty"`
	CSDS    string     `json:"csds,omitempty"`
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// channels has the channel to each target.
type channels map[string]*grpc.ClientConn

func run(target string) error {
	all := channels{}
	lines := bufio.NewScanner(os.Stdin)
	printed := json.NewEncoder(os.Stdout)
	var statuses string
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		var o outcome
		switch words[0] {
		case "csds":
			if statuses == "" {
				var err error
				if statuses, err = serveStatus(); err != nil {
					return err
				}
			}
			o.CSDS = statuses
		case "close":
			all.end(words[1])
		default:
			if len(words) == 1 {
				words = append(words, target)
			}
			o = all.call(words[0], words[1], words[2:])
		}
		if err := printed.Encode(o); err != nil {
			return err
		}
	}
	return lines.Err()
}

// call sends an RPC. more has the key and the deadline, if there are any.
func (c channels) call(method, target string, more []string) outcome {
	deadline := 10 * time.Second
	ctx := context.Background()
	if len(more) > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, "key", more[0])
	}
	if len(more) > 1 {
		ms, err := strconv.Atoi(more[1])
		if err != nil {
			return outcome{Error: err.Error()}
		}
		deadline = time.Duration(ms) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if c[target] == nil {
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return outcome{Error: err.Error()}
		}
		c[target] = conn
	}
	var id wrapperspb.StringValue
	if err := c[target].Invoke(ctx, method, &emptypb.Empty{}, &id); err != nil {
		return outcome{Error: err.Error(), Code: status.Code(err)}
	}
	return outcome{Backend: id.GetValue()}
}

// end closes the channel to a target.
func (c channels) end(target string) {
	if conn := c[target]; conn != nil {
		_ = conn.Close()
		delete(c, target)
	}
}

// serveStatus serves the Client Status Discovery Service, and returns its address.
func serveStatus() (string, error) {
	service, err := csds.NewClientStatusDiscoveryServer()
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s := grpc.NewServer()
	statusv3.RegisterClientStatusDiscoveryServiceServer(s, service)
	go func() { _ = s.Serve(l) }()
	return l.Addr().String(), nil
}
