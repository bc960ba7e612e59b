package envoy

// What a step waits for.

import (
	"fmt"
	"slices"
	"strings"
)

// The states of resources: the beginnings of lines, which the name follows.
const (
	activeCluster   = "dynamic_active_clusters "
	warmingCluster  = "dynamic_warming_clusters "
	activeListener  = "dynamic_listeners active_state "
	warmingListener = "dynamic_listeners warming_state "
	refusedListener = "dynamic_listeners error_state "
)

// shows returns a condition: Envoy has resources with these names in a state.
func (s *side) shows(state string, names ...string) func() error {
	return s.resources(func(lines []string) error {
		for _, name := range names {
			if !hasLine(lines, state+name+":") {
				return fmt.Errorf("there is no %s%s", state, name)
			}
		}
		return nil
	})
}

// has returns a condition: Envoy has a resource in a state, with a text in it.
func (s *side) has(state, name, text string) func() error {
	return s.resources(func(lines []string) error {
		for _, line := range lines {
			if strings.HasPrefix(line, state+name+":") && strings.Contains(line, text) {
				return nil
			}
		}
		return fmt.Errorf("there is no %s%s with %s", state, name, text)
	})
}

// lacks returns a condition: Envoy has no resource with one of these names in a state.
func (s *side) lacks(state string, names ...string) func() error {
	return s.resources(func(lines []string) error {
		for _, name := range names {
			if hasLine(lines, state+name+":") {
				return fmt.Errorf("there still is %s%s", state, name)
			}
		}
		return nil
	})
}

// mentions returns a condition: Envoy has resources with these names, in whatever state.
func (s *side) mentions(names ...string) func() error {
	return s.resources(func(lines []string) error {
		for _, name := range names {
			if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, `"`+name+`"`) }) {
				return fmt.Errorf("Envoy has not heard of %s", name)
			}
		}
		return nil
	})
}

func (s *side) resources(holds func(lines []string) error) func() error {
	return func() error {
		lines, err := s.envoy.resources(false)
		if err != nil {
			return err
		}
		return holds(lines)
	}
}

// hasHost returns a condition: a cluster of Envoy has a backend.
func (s *side) hasHost(cluster string, b *backend) func() error {
	return func() error {
		lines, err := s.envoy.hosts()
		if err != nil {
			return err
		}
		for _, line := range lines {
			if strings.HasPrefix(line, "hosts of "+cluster+":") && strings.Contains(line, `"`+b.host()+`"`) {
				return nil
			}
		}
		return fmt.Errorf("%s does not have the host %s", cluster, b.host())
	}
}

func hasLine(lines []string, beginning string) bool {
	for _, line := range lines {
		if strings.HasPrefix(line, beginning) {
			return true
		}
	}
	return false
}

// counts returns a condition: the sum of the statistics that match a regular expression is at least so high.
func (s *side) counts(pattern string, least float64) func() error {
	return func() error {
		n, err := s.envoy.stat(pattern)
		if err == nil && n < least {
			err = fmt.Errorf("%s is %v, not %v", pattern, n, least)
		}
		return err
	}
}

// equal returns an error unless what a step has seen is what it waits for.
func equal[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s is %v, not %v", what, got, want)
	}
	return nil
}
