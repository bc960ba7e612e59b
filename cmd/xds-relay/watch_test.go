package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/testplane"
)

// watched is a watch in progress whose output can be read line by line.
type watched struct {
	t     *testing.T
	lines *bufio.Scanner
	stop  func() (stderr string, status int)
}

func startWatch(t *testing.T, args ...string) watched {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	reader, writer := io.Pipe()
	var stderr bytes.Buffer
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, append([]string{"watch"}, args...), writer, &stderr)
		writer.Close()
	}()
	return watched{t: t, lines: bufio.NewScanner(reader), stop: func() (string, int) {
		cancel()
		code := <-status
		return stderr.String(), code
	}}
}

func (w watched) line() string {
	w.t.Helper()
	if !w.lines.Scan() {
		w.t.Fatalf("the output ended: %v", w.lines.Err())
	}
	return w.lines.Text()
}

var stamp = regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}(Z|[+-]\d{2}:\d{2})`)

func TestWatchPrintsChangesAsTheyCome(t *testing.T) {
	for _, protocol := range []string{"delta", "sotw"} {
		t.Run(protocol, func(t *testing.T) {
			plane := newControlPlane(t)
			plane.set(t, "1", "blue")
			w := startWatch(t, "--server", testplane.Listen(t, plane), "--node-id", "test", "--type", "cluster", "--protocol", protocol)
			expect := func(want ...string) {
				t.Helper()
				for _, line := range want {
					got := stamp.ReplaceAllString(w.line(), "TIME")
					got = regexp.MustCompile(`"?[0-9a-f]{64}"?$`).ReplaceAllString(got, `"1"`) // delta versions are hashes
					if got != line {
						t.Fatalf("got %q, want %q", got, line)
					}
				}
			}
			expect(
				`---`,
				`# TIME + added cluster "blue" version "1"`,
				`name: blue`,
				`version: "1"`,
				`resource:`,
				`  '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster`,
				`  name: blue`,
			)
			plane.set(t, "2")
			expect(`---`, `# TIME - removed cluster "blue"`)
			stderr, status := w.stop()
			if status != 0 || !strings.HasPrefix(stderr, "connected to 127.0.0.1:") {
				t.Errorf("exit status %d, standard error:\n%s", status, stderr)
			}
		})
	}
}

func TestWatchAsJSONIsAnObjectInEachLine(t *testing.T) {
	plane := newControlPlane(t)
	plane.set(t, "1", "blue")
	w := startWatch(t, "--server", testplane.Listen(t, plane), "--node-id", "test", "--type", "cluster", "-o", "json")
	var change struct {
		Time, Change, Name string
		Resource           *struct{ Name, Version string }
	}
	read := func() {
		t.Helper()
		change.Resource = nil
		if err := json.Unmarshal([]byte(w.line()), &change); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if change.Change != "added" || change.Name != "blue" || change.Resource.Name != "blue" || !stamp.MatchString(change.Time) {
		t.Errorf("got %+v", change)
	}
	plane.set(t, "2")
	read()
	if change.Change != "removed" || change.Name != "blue" || change.Resource != nil {
		t.Errorf("got %+v", change)
	}
	if _, status := w.stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

func TestWatchAsNamesIsALineForEachChange(t *testing.T) {
	plane := newControlPlane(t)
	plane.set(t, "1", "blue")
	w := startWatch(t, "--server", testplane.Listen(t, plane), "--node-id", "test", "--type", "cluster", "-o", "name", "--protocol", "sotw", "blue", "red")
	if got := stamp.ReplaceAllString(w.line(), "TIME"); got != `TIME + added cluster "blue" version "1"` {
		t.Errorf("got %q", got)
	}
	plane.set(t, "2", "red")
	if got := stamp.ReplaceAllString(w.line(), "TIME"); got != `TIME + added cluster "red" version "2"` {
		t.Errorf("got %q", got)
	}
	if got := stamp.ReplaceAllString(w.line(), "TIME"); got != `TIME - removed cluster "blue"` {
		t.Errorf("got %q", got)
	}
	stderr, _ := w.stop()
	if !strings.Contains(stderr, `cluster "red" does not exist`) {
		t.Errorf("standard error:\n%s", stderr)
	}
}

func TestWatchEndsWhenItsOutputDoes(t *testing.T) {
	plane := newControlPlane(t)
	address := testplane.Listen(t, plane)
	reader, writer := io.Pipe()
	reader.Close()
	var stderr bytes.Buffer
	status := run(t.Context(), []string{"watch", "--server", address, "--node-id", "test", "--type", "cluster"}, writer, &stderr)
	if status != 3 || !strings.Contains(stderr.String(), "writing the output") {
		t.Errorf("exit status %d, standard error:\n%s", status, stderr.String())
	}
}
