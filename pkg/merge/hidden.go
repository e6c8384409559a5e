package merge

import (
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
)

// isHidden reports whether the object at path prefix is in a logical cluster that merged responses do not include.
func (r *Request) isHidden(raw []byte, prefix ...string) bool {
	if r.Hidden == nil {
		return false
	}
	start, end, ok := find(raw, slices.Concat(prefix, []string{"metadata", "annotations", logicalcluster.AnnotationKey})...)
	return ok && end-start > 1 && r.Hidden(logicalcluster.Name(raw[start+1:end-1]))
}

// withoutObject removes the object from a row if the client has not requested it.
func (r *Request) withoutObject(row []byte) []byte {
	start, end, ok := find(row, "object")
	if !ok || !r.withoutObjects() {
		return row
	}
	return slices.Concat(row[:start], null, row[end:])
}

var null = []byte("null")
