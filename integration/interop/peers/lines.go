package peers

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// EachLine calls a function with each line of JSON that a program prints, until its output ends.
func EachLine[T any](output io.Reader, each func(T, error)) {
	scanner := bufio.NewScanner(output)
	for scanner.Scan() {
		var line T
		err := json.Unmarshal(scanner.Bytes(), &line)
		if err != nil {
			err = fmt.Errorf("%q: %w", scanner.Text(), err)
		}
		each(line, err)
	}
}

// Receive returns the next of the values that come from a program's output. The channel is closed when that ends.
func Receive[T any](values <-chan T) (value T, err error) {
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	select {
	case v, ok := <-values:
		if !ok {
			err = errors.New("the output has ended")
		}
		return v, err
	case <-deadline.C:
		return value, fmt.Errorf("nothing came within %v", Patience)
	}
}
