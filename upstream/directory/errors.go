package directory

// Errors in files, in words for people.

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/xds-relay/xds-relay/internal/fileerrors"
	"github.com/xds-relay/xds-relay/internal/secrets"
)

// Error is one error in a directory. It has no Line for a file in wire format, and for
// a file or a directory as a whole.
type Error = fileerrors.Error

// Errors are all errors of a directory, file by file.
type Errors = fileerrors.List

var (
	// protobuf prints a normal or a non-breaking space, so that programs do not depend on the text.
	protoError   = regexp.MustCompile(`(?s)^proto:[ \x{a0}](?:syntax error )?(?:\(line (\d+):(\d+)\): )?(.*)$`)
	unknownType  = regexp.MustCompile(`(?s)^unable to resolve (?:message )?["\[]([^"\]]*)["\]]: `)
	invalidValue = regexp.MustCompile(`(?s)^invalid value for (string|bytes) (field \S+|type): `)
	// No secret is as short as this where a time belongs.
	shortTime  = regexp.MustCompile(`^invalid google\.protobuf\.Duration value "[a-z0-9.]{1,8}"$`)
	unexpected = regexp.MustCompile(`(?s)^unexpected token:? (.*)$`)
)

// explain splits an error of protojson or prototext into position and message. The message does
// not quote strings of the file, which may be secrets.
func explain(err error) (line, column int, message string) {
	m := protoError.FindStringSubmatch(err.Error())
	if m == nil {
		return 0, 0, "not the form of its type"
	}
	line, _ = strconv.Atoi(m[1])
	column, _ = strconv.Atoi(m[2])
	message = m[3]
	if t := unknownType.FindStringSubmatch(message); t != nil {
		message = unknown(t[1]).Error()
	} else if v := invalidValue.FindStringSubmatch(message); v != nil {
		want := map[string]string{"string": "a string, in quotes", "bytes": "base64, in quotes"}[v[1]]
		message = fmt.Sprintf("invalid value for %s %s (want %s)", v[1], v[2], want)
	} else if t := unexpected.FindStringSubmatch(message); t != nil {
		message = "unexpected " + word(t[1])
	} else if shortTime.MatchString(message) {
		return line, column, message
	} else if message = secrets.Fault(err); message == "" {
		message = "not the form of its type"
	}
	return line, column, message
}

// unknown is the error of a message type that JSON and text need, but the program does not know.
func unknown(typeURL string) error {
	return fmt.Errorf("type %q is not known (add a descriptor set of it, or give the file as binary .pb)", typeURL)
}

// word returns a word for the kind of a token.
func word(token string) string {
	switch token[:min(len(token), 1)] {
	case "":
		return "end"
	case `"`, "'":
		return "string"
	case "{":
		return "map"
	case "[":
		return "list"
	case "}", "]", ">":
		return "end of a map or list"
	case "-", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9":
		return "number"
	}
	if token == "true" || token == "false" || token == "null" {
		return token
	}
	return "word"
}
