package merge

import (
	"mime"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// jsonType is the only encoding in which responses are merged.
const jsonType = "application/json"

// Accept returns the clauses of an Accept header that can be merged: those for JSON, including Tables and
// metadata. ok is false if there is none.
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

// AcceptsTables reports whether servers respond to an Accept header with Tables, i.e. whether the first clause
// that they support specifies Tables.
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
