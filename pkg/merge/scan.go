package merge

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var errJSON = errors.New("the response of a shard is not a valid JSON object of the API")

// find returns the position of the value at a path of names in a JSON object. It skips other values without
// parsing them, because a decoder has validated the object before.
func find(raw []byte, path ...string) (start, end int, ok bool) {
	start, end = skipSpace(raw, 0), len(raw)
	for _, name := range path {
		if start, end, ok = member(raw, start, name); !ok {
			return 0, 0, false
		}
	}
	return start, end, true
}

// member returns the position of a value in the object that begins at at.
func member(raw []byte, at int, name string) (start, end int, ok bool) {
	if at >= len(raw) || raw[at] != '{' {
		return 0, 0, false
	}
	for {
		key := skipSpace(raw, at+1)
		if key >= len(raw) || raw[key] != '"' {
			return 0, 0, false
		}
		keyEnd := value(raw, key)
		colon := skipSpace(raw, keyEnd)
		if colon >= len(raw) || raw[colon] != ':' {
			return 0, 0, false
		}
		start = skipSpace(raw, colon+1)
		end = value(raw, start)
		if string(raw[key+1:keyEnd-1]) == name {
			return start, end, true
		}
		if at = skipSpace(raw, end); at >= len(raw) || raw[at] != ',' {
			return 0, 0, false
		}
	}
}

// elements calls visit with the position of each element in the array that begins at at.
func elements(raw []byte, at int, visit func(start, end int)) {
	if at >= len(raw) || raw[at] != '[' {
		return
	}
	for {
		start := skipSpace(raw, at+1)
		if start >= len(raw) || raw[start] == ']' {
			return
		}
		end := value(raw, start)
		visit(start, end)
		if at = skipSpace(raw, end); at >= len(raw) || raw[at] != ',' {
			return
		}
	}
}

// skipSpace returns the position of the next token.
func skipSpace(raw []byte, at int) int {
	for at < len(raw) && (raw[at] == ' ' || raw[at] == '\n' || raw[at] == '\t' || raw[at] == '\r') {
		at++
	}
	return at
}

// value returns the end of the value that begins at at.
func value(raw []byte, at int) int {
	for depth := 0; at < len(raw); at++ {
		switch raw[at] {
		case '"':
			at = text(raw, at) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		case ' ', '\n', '\t', '\r', ',', ':':
			continue
		default:
			at = skipLiteral(raw, at) - 1
		}
		if depth == 0 {
			return min(at+1, len(raw))
		}
	}
	return len(raw)
}

// text returns the end of the string that begins at at.
func text(raw []byte, at int) int {
	for at++; at < len(raw); at++ {
		switch raw[at] {
		case '\\':
			at++
		case '"':
			return at + 1
		}
	}
	return len(raw)
}

// skipLiteral returns the end of a number, a boolean or null.
func skipLiteral(raw []byte, at int) int {
	if length := bytes.IndexAny(raw[at:], " \n\t\r,:]}"); length > 0 {
		return at + length
	}
	return len(raw)
}

// span is the position of a value in a JSON object.
type span struct{ start, end int }

// plain returns the string at a span. It must have no escapes, like resource versions.
func (s span) plain(raw []byte) (string, error) {
	quoted := raw[s.start:s.end]
	if len(quoted) < 2 || quoted[0] != '"' || bytes.IndexByte(quoted, '\\') >= 0 {
		return "", fmt.Errorf("%w: %.64q is not a resource version", errJSON, quoted)
	}
	return string(quoted[1 : len(quoted)-1]), nil
}

// versionIn returns the position of the resource version of the object at path prefix.
func versionIn(raw []byte, prefix ...string) []span {
	path := slices.Concat(prefix, []string{"metadata", "resourceVersion"})
	if start, end, ok := find(raw, path...); ok {
		return []span{{start, end}}
	}
	return nil
}

// tableVersionsIn returns the positions of the resource versions of a Table and its rows.
func tableVersionsIn(raw []byte) []span {
	found := versionIn(raw)
	rows, _, ok := find(raw, "rows")
	if !ok {
		return found
	}
	elements(raw, rows, func(start, end int) {
		if s, e, ok := find(raw[start:end], "object", "metadata", "resourceVersion"); ok {
			found = append(found, span{start + s, start + e})
		}
	})
	return found
}

// isTable reports whether an object that was requested as a Table is one. It must not be used for other requests,
// because tenants choose the groups and kinds of their objects.
func isTable(raw []byte) bool {
	kind, kindEnd, ok := find(raw, "kind")
	version, versionEnd, versioned := find(raw, "apiVersion")
	return ok && versioned && string(raw[kind:kindEnd]) == `"Table"` && bytes.HasPrefix(raw[version:versionEnd], []byte(`"`+metav1.GroupName+`/`))
}

// splice returns raw with each span replaced by a string. The spans must be in order.
func splice(raw []byte, spans []span, text string) []byte {
	out := make([]byte, 0, len(raw)+len(spans)*len(text))
	at := 0
	for _, s := range spans {
		out = append(out, raw[at:s.start]...)
		out = append(out, '"')
		out = append(out, text...)
		out = append(out, '"')
		at = s.end
	}
	return append(out, raw[at:]...)
}
