package frontproxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/shardplane/shardplane/pkg/request"
)

// deniedTimeout bounds the question whether a user may enter.
const deniedTimeout = 5 * time.Second

// conceals reports whether a shard's answer must not reach the client, because
// it would tell a user without access that the logical cluster exists: a 403
// without the mark of those who have entered. Of other errors without it, such as
// timeouts and malformed impersonation, which are answered before it is known
// whether the user may enter, that is asked.
func (f *forwarder) conceals(r *http.Request, res *http.Response, to *route) bool {
	switch {
	case to.mapped != nil:
		return f.concealsMapped(r.Context(), res, to)
	case to.mount != nil:
		return false // the user has entered where the mount is
	}
	entered := takeMark(res.Header)
	switch {
	case to.whole:
		return false // it is of no logical cluster
	case entered == "true":
		to.enter(f)
		return false
	case to.view != "" && res.StatusCode < http.StatusBadRequest:
		return true // a view is there, whatever it shows nothing of
	case res.StatusCode < http.StatusBadRequest:
		to.release() // nothing waits any more, however long the answer takes
		return false
	case res.StatusCode != http.StatusForbidden:
		return f.denied(r.Context(), to)
	default:
		return true
	}
}

// takeMark takes off an answer of a shard what it says about whether the user has
// entered the logical cluster: "true", "false", or nothing.
func takeMark(header http.Header) string {
	entered := header.Get(request.EnteredHeader)
	header.Del(request.EnteredHeader)
	return entered
}

// notEntered reports whether the user has not entered the logical cluster of to
// lately, as far as the front-proxy knows, and the shard says that it may not.
// What the client has to say is not read before: that alone would tell it that
// there is somebody who does.
func (f *forwarder) notEntered(ctx context.Context, to *route) bool {
	if f.visitors.has(to.visitor) {
		return false
	}
	return f.denied(ctx, to)
}

// denied asks the shard whether the user may not enter the logical cluster. A
// shard that does not answer has said nothing.
func (f *forwarder) denied(ctx context.Context, to *route) bool {
	if to.holder == nil {
		return false
	}
	denied, _ := f.ask(ctx, to)
	return denied
}

// ask asks the shard whether the user may not enter the logical cluster, and whether it has
// entered. It is neither where the shard does not answer.
func (f *forwarder) ask(ctx context.Context, to *route) (denied, entered bool) {
	timeout := deniedTimeout
	if to.isNew {
		timeout += f.readyIn(to) // who may enter waits
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	question := url.URL{Scheme: to.holder.base.Scheme, Host: to.holder.base.Host}
	question.RawPath = to.holder.prefix + to.view + request.ClusterPath(to.cluster) + "/version"
	question.Path, _ = url.PathUnescape(question.RawPath) // a URL's prefix and a name
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, question.String(), http.NoBody)
	if err != nil {
		return false, false
	}
	to.identify(r, f)
	res, err := to.holder.transport(false).RoundTrip(r)
	if err != nil {
		return false, false
	}
	defer func() { _ = res.Body.Close() }()
	mark := takeMark(res.Header)
	if to.view != "" && mark == "false" && (res.StatusCode < http.StatusBadRequest || res.StatusCode == http.StatusNotFound) {
		return true, false // it shows nothing of the logical cluster
	}
	return res.StatusCode == http.StatusForbidden && mark != "true", mark == "true"
}

// undialled reports whether there was no connection to the shard.
func undialled(err error) bool {
	var operation *net.OpError
	return errors.As(err, &operation) && operation.Op == "dial"
}
