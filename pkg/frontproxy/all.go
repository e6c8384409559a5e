package frontproxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/merge"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
)

// allShards stands in metrics and logs for the shard of requests to all of them.
const allShards = request.Wildcard

// serveAll answers a request for all logical clusters of all shards.
func (rt *router) serveAll(w http.ResponseWriter, r *http.Request, c *call) {
	rest := unescapedRest(c.rest)
	info, err := requestInfo(r, rest)
	if err == nil {
		err = serving.CheckWildcard(request.Scope{Mount: request.Clusters, Cluster: request.Cluster{Wildcard: true}}, info)
	}
	accept, ok := merge.Accept(r.Header.Get("Accept"))
	switch {
	case err != nil:
		writeError(w, err)
		return
	case !ok:
		writeStatus(w, statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, 0, "what all shards have is answered in JSON only: accept application/json, too"))
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeStatus(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	a := &askAll{forwarder: rt.forwarder, shards: rt.shards, groups: rt.groups, call: c, header: headerForAll(r, accept), long: info.Verb == "watch"}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if a.long {
		defer context.AfterFunc(rt.forwarder.draining, cancel)() //nolint:contextcheck // the end of the server ends the request, nothing more
	}
	merged := merge.Request{Path: rest, Query: query, Tables: merge.AcceptsTables(accept), Hidden: request.IsSystem, Partial: r.Header.Get(merge.PartialHeader) == merge.PartialAllow, Shards: a.all}
	answer := merged.List
	if a.long {
		answer = merged.Watch
	}
	rec := recordFrom(r.Context())
	if rec != nil {
		rec.shard, rec.cluster, rec.auditID = allShards, request.Wildcard, a.header.Get(auditinternal.HeaderAuditID)
	}
	err = answer(ctx, w)
	if rec != nil {
		rec.answeredByShard = a.answered.Load()
	}
	switch {
	case err == nil:
	case r.Context().Err() != nil:
		w.WriteHeader(statusClientGone)
	default:
		writeError(w, err)
	}
}

// writeError answers with what err says to clients.
func writeError(w http.ResponseWriter, err error) {
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	writeStatus(w, status)
}

// headerForAll returns what each shard is sent of a client's headers.
func headerForAll(r *http.Request, accept string) http.Header {
	auditID := identified(r)
	header := http.Header{}
	for name, values := range r.Header {
		if passesToAll(name) {
			header[name] = slices.Clone(values)
		}
	}
	ownIdentity.drop(header)
	if client, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		header.Set("X-Forwarded-For", client)
	}
	header.Set("Accept", accept)
	header.Set(auditinternal.HeaderAuditID, auditID)
	header.Set(request.MergedHeader, "true")
	return header
}

// passesToAll reports whether a header of a client says something to each shard: whom it
// impersonates, and what is for logs.
func passesToAll(name string) bool {
	return strings.HasPrefix(name, "Impersonate-") || slices.Contains([]string{"User-Agent", "Traceparent", "Tracestate"}, name)
}

// askAll sends one request to each shard.
type askAll struct {
	forwarder *forwarder
	shards    *shards
	groups    authn.GroupFilter
	call      *call
	header    http.Header
	long      bool
	answered  atomic.Bool
}

// all returns the registered shards.
func (a *askAll) all() ([]merge.Shard, error) {
	if !a.shards.objects.HasSynced() {
		return nil, unavailable("the shards are not known yet")
	}
	var all []merge.Shard
	for _, obj := range a.shards.objects.Lister().List(nil) {
		all = append(all, merge.Shard{Name: obj.Name, Number: merge.NumberOf(string(obj.UID)), Get: a.get(obj)}) //nolint:bodyclose // whoever gets it closes it
	}
	return all, nil
}

var errNoWay = errors.New("it is not reachable")

// get returns what sends the request to a shard.
func (a *askAll) get(obj *corev1alpha1.Shard) func(context.Context, url.Values) (*http.Response, error) {
	return func(ctx context.Context, query url.Values) (*http.Response, error) {
		b := a.shards.backend(obj.Name)
		if b == nil || !b.Allow() {
			return nil, errNoWay
		}
		defer b.Done()
		traced, attempt := b.attempt(ctx)
		r, err := a.request(traced, b, query)
		if err != nil {
			return nil, err
		}
		transport := b.multiplexed
		if a.long {
			transport = b.parts
		}
		res, err := transport.RoundTrip(r)
		if err != nil {
			attempt.failed(ctx, err)
			a.forwarder.metrics.upstreamErrors.WithLabelValues(b.Name, "unreachable").Inc()
			b.Used(b.retire)
			// Addresses of shards are no clients' business.
			return nil, errNoWay
		}
		a.answered.Store(true)
		res.Body = &usedBody{ReadCloser: res.Body, used: sync.OnceFunc(func() { b.Used(b.retire) })}
		return res, nil
	}
}

// request makes the request to a shard.
func (a *askAll) request(ctx context.Context, b *backend, query url.Values) (*http.Request, error) {
	escaped := b.prefix + request.ClusterPath(request.Wildcard) + a.call.rest
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	r.URL.Path, r.URL.RawPath, r.URL.RawQuery = path, escaped, query.Encode()
	maps.Copy(r.Header, a.header)
	a.call.identify(r.Header, a.groups)
	return r, nil
}

// usedBody notes when an answer of a shard has been read.
type usedBody struct {
	io.ReadCloser
	used func()
}

func (b *usedBody) Close() error {
	err := b.ReadCloser.Close()
	b.used()
	return err
}
