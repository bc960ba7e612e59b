package configs

// This file turns YAML into a Config: it parses the text, adds the overrides, checks the shape, decodes,
// sets the defaults, and checks the meaning.

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Load reads the YAML file at path and parses it as Parse does.
func Load(path string) (*Config, error) { return (*Overrides)(nil).Load(path) }

// Parse returns the configuration in data, which is YAML, with defaults filled in. name is what errors
// call the file. The error is an Errors with all mistakes in data. Parse reads no other file: see
// CheckFiles.
func Parse(name string, data []byte) (*Config, error) { return (*Overrides)(nil).Parse(name, data) }

// Load is like the function Load, and also applies o.
func (o *Overrides) Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return o.Parse(path, data)
}

// Parse is like the function Parse, and also applies o.
func (o *Overrides) Parse(name string, data []byte) (*Config, error) {
	root, err := parseYAML(name, data)
	if err != nil {
		return nil, err
	}
	s := newShape(name)
	o.apply(root, s)
	// walk takes wrong values out of the tree, so that the rest can still be decoded and checked.
	if !s.walk(root, configType, "", "") {
		return nil, inOrder(s.errs)
	}
	c := &Config{}
	if err := root.Decode(c); err != nil {
		return nil, inOrder(append(s.errs, s.errorf("", "%w", err)))
	}
	c.Node.Metadata = s.metadata
	c.source, c.text = s.source, sha256.Sum256(data)
	if err := c.setDefaults(s.unusable); err != nil {
		return nil, err
	}
	if err := inOrder(append(s.errs, c.check(s.unusable)...)); err != nil {
		return nil, err
	}
	return c, nil
}

// parseYAML returns the root of the only document in data. An empty one is an
// empty map.
func parseYAML(name string, data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) || err == nil && document.Content[0].ShortTag() == "!!null" {
		return &yaml.Node{Kind: yaml.MappingNode, Line: 1, Column: 1}, nil
	}
	if err == nil {
		switch err = decoder.Decode(&second); {
		case errors.Is(err, io.EOF):
			return document.Content[0], nil
		case err == nil:
			return nil, Errors{{File: name, Line: second.Line, Column: second.Column, Err: errors.New("a second YAML document starts here (want one)")}}
		}
	}
	return nil, Errors{syntaxError(name, err)}
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntaxError moves the line number from the YAML library's text into the Error.
func syntaxError(name string, err error) Error {
	text := err.Error()
	e := Error{File: name}
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	e.Err = fmt.Errorf("not YAML: %s", text)
	return e
}
