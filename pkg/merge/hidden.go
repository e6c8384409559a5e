package merge

import (
	"bytes"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
)

// isHidden reports whether an object is in a logical cluster that merged answers do not contain.
// prefix leads to the object.
func (r *Request) isHidden(raw []byte, prefix ...string) bool {
	if r.Hidden == nil {
		return false
	}
	start, end, ok := find(raw, slices.Concat(prefix, []string{"metadata", "annotations", logicalcluster.AnnotationKey})...)
	return ok && end-start > 1 && r.Hidden(logicalcluster.Name(raw[start+1:end-1]))
}

// withoutObjects reports whether the client wants rows of Tables without objects. The shards are
// asked for the metadata, which contains the logical cluster of a row.
func (r *Request) withoutObjects() bool {
	return r.Tables && r.Query.Get(queryObject) == noObject
}

// withoutObject removes the object from a row if the client does not want it.
func (r *Request) withoutObject(row []byte) []byte {
	start, end, ok := find(row, "object")
	if !ok || !r.withoutObjects() {
		return row
	}
	return slices.Concat(row[:start], null, row[end:])
}

var null = []byte("null")

// visible returns the object of an event, or nil if it is hidden. Each shard sends the columns of
// a Table with its first event only, so that those of a hidden event are sent with the next one.
func (m *merged) visible(f *feed, raw []byte) []byte {
	if !m.request.Tables || !isTable(raw) {
		if m.request.isHidden(raw) {
			return nil
		}
		return raw
	}
	rows, hidden := 0, 0
	if at, _, ok := find(raw, "rows"); ok {
		elements(raw, at, func(start, end int) {
			rows++
			if m.request.isHidden(raw[start:end], "object") {
				hidden++
			}
		})
	}
	start, end, ok := find(raw, columnDefinitions)
	none := !ok || bytes.Equal(raw[start:end], null)
	switch {
	case rows > 0 && rows == hidden: // an event has one row
		if !none {
			f.columns = bytes.Clone(raw[start:end])
		}
		return nil
	case ok && none && f.columns != nil:
		raw = slices.Concat(raw[:start], f.columns, raw[end:])
	}
	f.columns = nil
	return raw
}

// withoutRowObjects removes the objects from the rows of a Table if the client does not want them.
func (m *merged) withoutRowObjects(raw []byte) []byte {
	at, _, ok := find(raw, "rows")
	if !ok || !m.request.withoutObjects() {
		return raw
	}
	out, last := []byte(nil), 0
	elements(raw, at, func(start, end int) {
		out = append(append(out, raw[last:start]...), m.request.withoutObject(raw[start:end])...)
		last = end
	})
	return append(out, raw[last:]...)
}
