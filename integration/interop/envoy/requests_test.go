package envoy

// Requests with headers, and what they are answered.

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// call is a request to one of Envoy's listeners.
type call struct {
	address string // default: Envoy's first listener
	host    string // default: the address
	header  map[string]string
}

// answers returns a condition: a call has this answer, the status and the id of the backend that answers. An Envoy
// that answers itself has no id.
func (s *side) answers(c call, status int, id string) func() error {
	return func() error { return s.call(s.client, c).is(status, id) }
}

// waiting is a call that waits for its answer.
type waiting chan answer

// begin sends a request, and does not wait for its answer.
func (s *side) begin(c call) waiting {
	w := make(waiting, 1)
	client := &http.Client{Transport: s.client.Transport} // without a timeout
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w <- s.call(client, c)
	}()
	s.Cleanup(func() {
		s.envoy.kill()
		<-ended
	})
	return w
}

// waits is a condition: a request waits in Envoy.
func (s *side) waits() error {
	active, err := s.envoy.stat(`^http\.test\.downstream_rq_active$`)
	if err == nil && active == 0 {
		err = errors.New("no request is active")
	}
	return err
}

// answers returns a condition: the call has this answer.
func (w waiting) answers(status int, id string) func() error {
	return func() error {
		select {
		case a := <-w:
			w <- a
			return a.is(status, id)
		default:
			return errors.New("no answer")
		}
	}
}

// answer is the answer to a call.
type answer struct {
	status int
	body   string
	err    error
}

func (a answer) is(status int, id string) error {
	switch {
	case a.err != nil:
		return a.err
	case a.status != status:
		return fmt.Errorf("status %d: %s", a.status, a.body)
	case status == http.StatusOK && a.body != id:
		return fmt.Errorf("a request reached %q", a.body)
	}
	return nil
}

func (s *side) call(client *http.Client, c call) answer {
	if c.address == "" {
		c.address = s.address
	}
	request, err := http.NewRequest(http.MethodGet, "http://"+c.address+"/", nil)
	if err != nil {
		return answer{err: err}
	}
	if c.host != "" {
		request.Host = c.host
	}
	for key, value := range c.header {
		request.Header.Set(key, value)
	}
	reply, err := client.Do(request)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	return answer{reply.StatusCode, string(text), err}
}
