package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// The processes of a run. The measuring process communicates with the others over their standard input
// and output, with one JSON value on each line.

// command is a command for a process.
type command struct {
	Do string `json:"do"`
	// Index and Version are those of the resource to change; a negative index means all.
	Index   int `json:"index,omitempty"`
	Version int `json:"version,omitempty"`

	// For the swarm.
	Address string `json:"address,omitempty"`
	Clients int    `json:"clients,omitempty"`
	// PerConn is how many streams share a connection.
	PerConn int `json:"per_conn,omitempty"`
	// AtOnce: all clients connect at once.
	AtOnce bool `json:"at_once,omitempty"`
	// Deaf is the number of clients that never read.
	Deaf int `json:"deaf,omitempty"`
	// Group identifies a group of clients.
	Group string `json:"group,omitempty"`
	// First is the number of the first client, and Stride, if not 0, what the next ones are apart.
	First  int `json:"first,omitempty"`
	Stride int `json:"stride,omitempty"`
	// Count is the number of sightings that await waits for; 0 for one per client.
	Count int `json:"count,omitempty"`
	// Each: await counts resources of the version, not clients that have it.
	Each    bool          `json:"each,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"`
	Spec    *Spec         `json:"spec,omitempty"`
	// Rate and For are the updates per second of a storm, and its duration.
	Rate int           `json:"rate,omitempty"`
	For  time.Duration `json:"for,omitempty"`
}

// answer is the result of a command.
type answer struct {
	Error string `json:"error,omitempty"`
	// Address is where a server serves, in its first answer.
	Address string `json:"address,omitempty"`
	// At is the time when an update began, Median and Last the times when half of the
	// clients and all clients had it, in nanoseconds since 1970.
	At, Median, Last int64 `json:",omitempty"`
	// For latencies, Slow is the 99th percentile and Median the median, in nanoseconds.
	Slow int64 `json:"slow,omitempty"`
	// Most is the longest latency, and Stamps the number of resources.
	Most     int64 `json:"most,omitempty"`
	Stamps   int64 `json:"stamps,omitempty"`
	Messages int64 `json:"messages,omitempty"`
	Bytes    int64 `json:"bytes,omitempty"`
	// Removed is the number of removed names in delta responses.
	Removed int64    `json:"removed,omitempty"`
	Counts  *counted `json:"counts,omitempty"`
}

// counted has the counters of an origin.
type counted struct {
	Streams       int   `json:"streams"`
	Subscriptions int   `json:"subscriptions"`
	Requests      int64 `json:"requests"`
	RequestBytes  int64 `json:"request_bytes"`
	ResponseBytes int64 `json:"response_bytes"`
}

// serveCommands runs in the other processes: it answers each command until its input ends.
func serveCommands(first answer, do func(*command) (answer, error)) error {
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	if err := out.Encode(first); err != nil {
		return err
	}
	for {
		var c command
		if err := in.Decode(&c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		a, err := do(&c)
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// child is a process.
type child struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	enc     *json.Encoder
	dec     *json.Decoder
	address string
	// operator is the address of a relay's admin listener.
	operator string
	files    []string // to remove at the end
	// ended is closed when the process has ended, if something else waits for it.
	ended <-chan struct{}
}

// startRole starts a role of this program.
func startRole(name, role string, spec *Spec) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	arg, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cmd: exec.Command(self, "-role", role, "-spec", string(arg))}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.enc, c.dec = json.NewEncoder(c.in), json.NewDecoder(bufio.NewReader(out))
	var first answer
	if err := c.dec.Decode(&first); err != nil {
		c.stop()
		return nil, fmt.Errorf("%s: did not start: %w", name, err)
	}
	c.address = first.Address
	return c, nil
}

// do sends a command to the process and returns its answer.
func (c *child) do(cmd command) (answer, error) {
	var a answer
	if err := c.enc.Encode(cmd); err != nil {
		return a, fmt.Errorf("%s: %s: %w", c.name, cmd.Do, err)
	}
	if err := c.dec.Decode(&a); err != nil {
		return a, fmt.Errorf("%s: %s: %w", c.name, cmd.Do, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("%s: %s: %s", c.name, cmd.Do, a.Error)
	}
	return a, nil
}

func (c *child) stop() {
	if c.in != nil {
		_ = c.in.Close()
	}
	_ = c.cmd.Process.Kill()
	if c.ended != nil {
		<-c.ended
	} else {
		_ = c.cmd.Wait()
	}
	for _, f := range c.files {
		_ = os.RemoveAll(f)
	}
}

// cpu returns the CPU time of the process.
func (c *child) cpu() (time.Duration, error) {
	d, err := cpuOf(c.cmd.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("%s: cannot read its CPU time: %w", c.name, err)
	}
	return d, nil
}

// forgetPeak resets the peak of the resident memory.
func (c *child) forgetPeak() error {
	const peak = "5"
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", c.cmd.Process.Pid), []byte(peak), 0)
}

// rss returns the resident memory of the process and its peak, in bytes.
func (c *child) rss() (now, peak int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		var to *int64
		switch {
		case strings.HasPrefix(line, "VmRSS:"):
			to = &now
		case strings.HasPrefix(line, "VmHWM:"):
			to = &peak
		default:
			continue
		}
		kb, err := strconv.ParseInt(strings.Fields(line)[1], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		*to = kb << 10
	}
	return now, peak, nil
}

// metric reads a metric of a relay.
func (c *child) metric(name string) (float64, error) {
	response, err := http.Get("http://" + c.operator + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	value, ok := metricIn(string(page), name)
	if !ok {
		return 0, fmt.Errorf("%s: has no metric %s", c.name, name)
	}
	return value, nil
}
