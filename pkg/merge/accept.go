package merge

import (
	"mime"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// AsksForTables reports whether servers answer an Accept header with Tables: whether the
// preferred clause of those that they can satisfy names them.
func AcceptsTables(accept string) bool {
	for _, clause := range goautoneg.ParseAccept(accept) {
		as, group, version := clause.Params["as"], clause.Params["g"], clause.Params["v"]
		if as == "" && group == "" && version == "" {
			return false
		}
		if group != metav1.GroupName || version != "v1" && version != "v1beta1" {
			continue
		}
		switch as {
		case "Table":
			return true
		case "PartialObjectMetadata", "PartialObjectMetadataList":
			return false
		}
	}
	return false
}
