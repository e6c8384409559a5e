package merge

import (
	"mime"
	"strings"
)

// jsonType is the one encoding in which answers are merged.
const jsonType = "application/json"

// Accept returns what of an Accept header shards are to be asked for: what is in JSON,
// Tables and metadata included. ok is false if the client takes nothing of that.
func Accept(header string) (accept string, ok bool) {
	if header == "" {
		return jsonType, true
	}
	var kept []string
	for clause := range strings.SplitSeq(header, ",") {
		mediaType, params, err := mime.ParseMediaType(clause)
		if err != nil {
			continue
		}
		switch mediaType {
		case jsonType, "*/*", "application/*":
		default:
			continue
		}
		delete(params, "stream")
		delete(params, "pretty")
		kept = append(kept, mime.FormatMediaType(jsonType, params))
	}
	return strings.Join(kept, ","), len(kept) > 0
}
