package envoy

// What a step waits for.

import (
	"fmt"
	"slices"
	"strings"
)

// The beginnings of the lines of a summary. The name of a resource follows.
const (
	activeCluster   = "dynamic_active_clusters "
	warmingCluster  = "dynamic_warming_clusters "
	activeListener  = "dynamic_listeners active_state "
	warmingListener = "dynamic_listeners warming_state "
	refusedListener = "dynamic_listeners error_state "
)

// shows returns a condition: the summary has a line with this beginning for each of these names.
func (s *side) shows(beginning string, names ...string) func() error {
	return s.summarizes(func(lines []string) error {
		for _, name := range names {
			if !hasLine(lines, beginning+name+":") {
				return fmt.Errorf("there is no %s%s", beginning, name)
			}
		}
		return nil
	})
}

// has returns a condition: the summary has a line with this beginning for a name, with a text in it.
func (s *side) has(beginning, name, text string) func() error {
	return s.summarizes(func(lines []string) error {
		for _, line := range lines {
			if strings.HasPrefix(line, beginning+name+":") && strings.Contains(line, text) {
				return nil
			}
		}
		return fmt.Errorf("there is no %s%s with %s", beginning, name, text)
	})
}

// lacks returns a condition: the summary has no line with this beginning for any of these names.
func (s *side) lacks(beginning string, names ...string) func() error {
	return s.summarizes(func(lines []string) error {
		for _, name := range names {
			if hasLine(lines, beginning+name+":") {
				return fmt.Errorf("there still is %s%s", beginning, name)
			}
		}
		return nil
	})
}

// mentions returns a condition: the summary has resources with these names, in whatever state.
func (s *side) mentions(names ...string) func() error {
	return s.summarizes(func(lines []string) error {
		for _, name := range names {
			if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, `"`+name+`"`) }) {
				return fmt.Errorf("Envoy has not heard of %s", name)
			}
		}
		return nil
	})
}

func (s *side) summarizes(holds func(lines []string) error) func() error {
	return func() error {
		lines, err := s.envoy.summary(false)
		if err != nil {
			return err
		}
		return holds(lines)
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
