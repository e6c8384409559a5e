package merge

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// List responds with the list of all shards, or returns an error before the response. Later errors abort it.
func (r *Request) List(ctx context.Context, w http.ResponseWriter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shards, err := r.shards()
	if err != nil {
		return err
	}
	limit, _ := strconv.ParseInt(r.Query.Get(queryLimit), 10, 64) // shards reject an invalid number
	match := r.Query.Get(queryMatch)
	switch version := r.Query.Get(queryVersion); {
	case r.Query.Get(queryContinue) != "":
		return r.next(ctx, w, shards, limit)
	case limit > 0 && version != "0":
		exact := match == string(metav1.ResourceVersionMatchExact) || match == "" && version != ""
		shards, v, unreachable, err := r.heads(ctx, shards, exact)
		if err != nil {
			return err
		}
		return r.page(ctx, w, page{shards: shards, version: v, limit: limit, unreachable: unreachable})
	default:
		return r.full(ctx, w, shards)
	}
}

// heads determines the positions at which the shards are read, one for each reachable shard.
func (r *Request) heads(ctx context.Context, shards []Shard, exact bool) ([]Shard, Vector, missing, error) {
	v, err := r.start(shards)
	if err != nil {
		return nil, v, nil, err
	}
	if exact && len(v) > 0 {
		// Shards that are not in the version had no objects then.
		return slices.DeleteFunc(shards, func(s Shard) bool { _, ok := v[s.Number]; return !ok }), v, missing{}, nil
	}
	unreachable := missing{}
	responded, revisions, err := each(r, shards, unreachable, func(s Shard) (uint64, error) {
		return r.head(ctx, s, r.at(s, v, queryLimit, "1"))
	})
	if err != nil {
		return nil, v, nil, err
	}
	v = Vector{}
	for i, s := range responded {
		v[s.Number] = revisions[i]
	}
	return responded, v, unreachable, nil
}

// at returns the query for a shard, with its revision of the request's version. It does not allow any cached
// state, so that all parts are from the same time as far as their versions show.
func (r *Request) at(s Shard, v Vector, change ...string) url.Values {
	q := r.with(change...)
	if revision, ok := v[s.Number]; ok {
		q.Set(queryVersion, strconv.FormatUint(revision, 10))
		return q
	}
	notOlder := q.Get(queryMatch) == string(metav1.ResourceVersionMatchNotOlderThan)
	if version := q.Get(queryVersion); version != "" && (version != "0" || notOlder || q.Get(queryMatch) == "") {
		q.Del(queryVersion)
		q.Del(queryMatch)
	}
	return q
}

// full responds with the full list. The shards are read concurrently and written in order.
func (r *Request) full(ctx context.Context, w http.ResponseWriter, shards []Shard) error {
	exact := r.Query.Get(queryMatch) == string(metav1.ResourceVersionMatchExact)
	shards, v, unreachable, err := r.heads(ctx, shards, exact)
	if err != nil {
		return err
	}
	match := metav1.ResourceVersionMatchNotOlderThan
	if exact {
		match = metav1.ResourceVersionMatchExact
	}
	responded, parts, err := each(r, shards, unreachable, func(s Shard) (*part, error) {
		return r.openPart(ctx, s, r.at(s, v, queryMatch, string(match), queryLimit, ""))
	})
	defer func() {
		for _, p := range parts {
			p.close()
		}
	}()
	if err != nil {
		return err
	}
	maps.DeleteFunc(v, func(number uint32, _ uint64) bool { return indexOf(responded, number) < 0 })
	out := newWriter(w, parts[0], unreachable)
	for _, p := range parts {
		if v, err = out.part(p, v); err != nil {
			abort(ctx, p.shard, err)
		}
	}
	out.end(ctx, v, "")
	return nil
}

// page is one page of a list.
type page struct {
	// shards are those that remain to be read, by name, each at its position in version.
	shards  []Shard
	version Vector
	// token is the continue token for the first shard.
	token       string
	limit       int64
	unreachable missing
}

// next responds with the page of a continue token.
func (r *Request) next(ctx context.Context, w http.ResponseWriter, shards []Shard, limit int64) error {
	if version := r.Query.Get(queryVersion); version != "" && version != "0" {
		return apierrors.NewBadRequest("a resource version is not allowed with a continue token")
	}
	if match := r.Query.Get(queryMatch); match != "" {
		return invalidOption(queryMatch, "is not allowed with a continue token")
	}
	c, v, err := r.cursor(r.Query.Get(queryContinue))
	if err != nil {
		return err
	}
	if err := known(v, shards); err != nil {
		return err
	}
	from := indexOf(shards, c.Shard)
	if from < 0 {
		return expired("a shard of the list was removed: list again")
	}
	name := shards[from].Name
	shards = slices.DeleteFunc(shards, func(s Shard) bool {
		_, listed := v[s.Number]
		return s.Name < name || s.Name != name && !listed
	})
	return r.page(ctx, w, page{shards: shards, version: v, token: c.Token, limit: limit})
}

// page responds with elements of one shard after the other, until the limit.
func (r *Request) page(ctx context.Context, w http.ResponseWriter, p page) error {
	var out *writer
	remaining := p.limit
	for i, s := range p.shards {
		part, err := r.openPart(ctx, s, r.pageQuery(s, p, remaining))
		if apierrors.IsNotFound(err) && i+1 < len(p.shards) {
			p.token = ""
			continue
		}
		if err != nil && out != nil {
			// The next page returns the error.
			out.end(ctx, p.version, r.token(cursor{Version: p.version.String(), Shard: s.Number}))
			return nil
		}
		if err != nil {
			return r.pageError(s, p.version, err)
		}
		defer part.close()
		if out == nil {
			out = newWriter(w, part, p.unreachable)
		}
		before := out.count
		if p.version, err = out.part(part, p.version); err != nil {
			abort(ctx, s, err)
		}
		remaining -= out.count - before
		var token string
		switch next := i + 1; {
		case part.metadata.Continue != "":
			token = r.token(cursor{Version: p.version.String(), Shard: s.Number, Token: part.metadata.Continue})
		case next < len(p.shards) && p.limit > 0 && remaining <= 0:
			token = r.token(cursor{Version: p.version.String(), Shard: p.shards[next].Number})
		}
		if token != "" || i+1 == len(p.shards) {
			out.end(ctx, p.version, token)
			return nil
		}
		p.token = ""
	}
	return apierrors.NewInternalError(fmt.Errorf("%w: a page without a shard", errJSON))
}

func (r *Request) pageQuery(s Shard, p page, limit int64) url.Values {
	q := r.with(queryContinue, p.token, queryVersion, "", queryMatch, "", queryLimit, "")
	if p.limit > 0 {
		q.Set(queryLimit, strconv.FormatInt(limit, 10))
	}
	if revision, ok := p.version[s.Number]; ok && p.token == "" {
		q.Set(queryVersion, strconv.FormatUint(revision, 10))
		q.Set(queryMatch, string(metav1.ResourceVersionMatchExact))
	}
	return q
}

// pageError returns the error for a page that cannot be read. If a shard has compacted the version, the error
// contains a token with which the list continues at the shard's latest version.
func (r *Request) pageError(s Shard, v Vector, err error) error {
	status := statusOf(err)
	switch {
	case status == nil:
		return missing{s.Name: err}.status()
	case status.ErrStatus.Code == http.StatusGone:
		continued := *status
		latest := maps.Clone(v)
		delete(latest, s.Number)
		continued.ErrStatus.Continue = r.token(cursor{Version: latest.String(), Shard: s.Number, Token: status.ErrStatus.Continue})
		return &continued
	}
	return err
}

// abort aborts a response, so that the client does not consider it complete.
func abort(ctx context.Context, s Shard, err error) {
	if ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to write a list of all shards", "shard", s.Name)
	}
	panic(http.ErrAbortHandler)
}

// writer writes a merged list. The metadata is written last, because it depends on the elements.
type writer struct {
	*bufio.Writer
	template *part
	count    int64
}

// newWriter starts a response with the members of one part.
func newWriter(w http.ResponseWriter, template *part, unreachable missing) *writer {
	header := w.Header()
	header.Set("Content-Type", template.res.Header.Get("Content-Type"))
	header.Set("Cache-Control", "no-cache, private")
	for _, warning := range template.res.Header.Values("Warning") {
		header.Add("Warning", warning)
	}
	warn(header, unreachable)
	w.WriteHeader(http.StatusOK)
	out := &writer{Writer: bufio.NewWriterSize(w, copyBytes), template: template}
	_ = out.WriteByte('{')
	for _, f := range template.before {
		out.member(f.name, f.value)
		_ = out.WriteByte(',')
	}
	_, _ = fmt.Fprintf(out, "%q:[", cmp.Or(template.array, "items"))
	return out
}

func (w *writer) member(name string, value []byte) {
	_, _ = fmt.Fprintf(w, "%q:", name)
	_, _ = w.Write(value)
}

// part writes the elements of one shard, and returns the vector with their version.
func (w *writer) part(p *part, v Vector) (Vector, error) {
	var prefix []string
	columns := func(row json.RawMessage) (json.RawMessage, error) { return row, nil }
	if p.array == "rows" {
		prefix = []string{"object"}
		if !bytes.Equal(columnsOf(w.template.before), columnsOf(p.before)) {
			var err error
			if columns, err = mapColumns(columnsOf(p.before), columnsOf(w.template.before)); err != nil {
				return v, err
			}
		}
	}
	err := p.each(func(element json.RawMessage) error {
		if p.request.isHidden(element, prefix...) {
			return nil
		}
		element, err := columns(element)
		if err != nil {
			return err
		}
		out, err := versioned(element, prefix, p.shard.Number, v)
		if err != nil {
			return err
		}
		if w.count > 0 {
			_ = w.WriteByte(',')
		}
		w.count++
		if p.array == "rows" {
			out = p.request.withoutObject(out)
		}
		_, err = w.Write(out)
		return err
	})
	if err != nil {
		return v, err
	}
	revision, err := p.revision()
	if err != nil {
		return v, err
	}
	return v.With(p.shard.Number, revision), nil
}

// end writes the members after the elements.
func (w *writer) end(ctx context.Context, v Vector, token string) {
	_, _ = w.WriteString("]")
	for _, f := range w.template.after {
		_ = w.WriteByte(',')
		w.member(f.name, f.value)
	}
	metadata := map[string]any{queryVersion: v.String()}
	if token != "" {
		metadata[queryContinue] = token
	}
	for name, value := range w.template.raw {
		switch name {
		case queryVersion, queryContinue, "remainingItemCount", "selfLink":
		default:
			metadata[name] = value
		}
	}
	raw, err := json.Marshal(metadata)
	if err != nil {
		abort(ctx, w.template.shard, err)
	}
	_ = w.WriteByte(',')
	w.member("metadata", raw)
	_, _ = w.WriteString("}\n")
	if err := w.Flush(); err != nil {
		abort(ctx, w.template.shard, err)
	}
}
