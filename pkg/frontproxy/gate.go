package frontproxy

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	// deniedTimeout bounds the question whether a user may enter.
	deniedTimeout = 5 * time.Second

	// shardRetryTimeout is for how long clients are asked to retry while a shard has not been read. Clients
	// that retry, such as kubectl, repeat each of their requests ten times before they show the error.
	shardRetryTimeout = 10 * time.Second
)

// gate decides what users learn of logical clusters. Who may not enter one is answered as if it
// did not exist, after the same time.
type gate struct {
	resolver    *resolver
	accessCache *accessCache
	// groups decides which groups users keep.
	groups authn.GroupFilter
	// unread returns the shards that have not been read since the start, or whose connection has
	// broken, and since when the last one is not: without any, nothing exists that is not known.
	unread func() (shards []string, since time.Time)
}

// administers reports whether a user administers the installation. Groups that shards are not told
// of count for nothing.
func (g *gate) administers(ctx context.Context, who user.Info) bool {
	told := &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: g.groups.Filter(who.GetGroups()), Extra: who.GetExtra()}
	return identity.MemberOf(ctx, told, request.GroupAdmin)
}

// visit is a call for a logical cluster, or for what a view shows of one.
type visit struct {
	*gate
	*call

	// holder is the shard of the logical cluster, which says who may enter; nil if it is not known.
	holder *backend
	// cluster is the resolved name. If it is seen through a view, that comes before it in the path.
	cluster, view string
	accessKey     accessKey
	// isNew is set while the logical cluster is not for users yet, or servers may not
	// know yet that it is.
	isNew bool
	// release gives the place back that the call has among those who may have to wait.
	release func()
}

// visit returns the visit of a call that has not been resolved yet.
func (g *gate) visit(c *call) *visit { return &visit{gate: g, call: c, release: func() {}} }

// take takes a place among those who may have to wait, or answers and reports false.
func (v *visit) take(w http.ResponseWriter) bool {
	release, ok := v.resolver.enter(identity.FlowOf("", v.user))
	if !ok {
		writeStatus(w, statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, retrySoon,
			"too many requests of this user wait for workspaces that it has not entered yet, try again later"))
		return false
	}
	v.release = release
	return true
}

// at says which logical cluster the visit is for.
func (v *visit) at(target workspaceindex.Target, view string, holder *backend) {
	v.cluster, v.view, v.holder, v.accessKey = target.Cluster.String(), view, holder, accessKeyOf(v.user, target.Cluster, view)
}

// entered notes that the user has entered the logical cluster.
func (v *visit) entered() {
	v.accessCache.entered(v.accessKey)
	v.release()
}

// readyIn returns how long the call still waits for the logical cluster to become ready.
func (v *visit) readyIn() time.Duration { return max(0, time.Until(v.arrived.Add(v.resolver.ready))) }

// identify says in the header of a request to the shard who it is from, and how long it waits.
func (v *visit) identify(header http.Header) {
	if v.isNew {
		header.Set(request.ReadyTimeoutHeader, v.readyIn().String())
	}
	v.call.identify(header, v.groups)
}

// conceals reports whether a shard's answer must not reach the client, because
// it would tell a user without access that the logical cluster exists: a 403
// without the mark of those who have entered. Of other errors without it, such as
// timeouts and malformed impersonation, which are answered before it is known
// whether the user may enter, that is asked.
func (v *visit) conceals(ctx context.Context, res *http.Response) bool {
	switch mark := takeMark(res.Header); {
	case mark == "true":
		v.entered()
		return false
	case v.view != "" && res.StatusCode < http.StatusBadRequest:
		return true // a view is there, whatever it shows nothing of
	case res.StatusCode < http.StatusBadRequest:
		v.release() // nothing waits any more, however long the answer takes
		return false
	case res.StatusCode != http.StatusForbidden:
		return v.denied(ctx)
	default:
		return true
	}
}

// takeMark takes off an answer of a shard what it says about whether the user has
// entered the logical cluster: "true", "false", or nothing.
func takeMark(header http.Header) string {
	mark := header.Get(request.AccessAuthorizedHeader)
	header.Del(request.AccessAuthorizedHeader)
	return mark
}

// notEntered reports whether the user has not entered the logical cluster
// lately, as far as the front-proxy knows, and the shard says that it may not.
// What the client has to say is not read before: that alone would tell it that
// there is somebody who does.
func (v *visit) notEntered(ctx context.Context) bool {
	return !v.accessCache.has(v.accessKey) && v.denied(ctx)
}

// denied asks the shard whether the user may not enter the logical cluster. A
// shard that does not answer has said nothing.
func (v *visit) denied(ctx context.Context) bool {
	denied, _ := v.ask(ctx)
	return denied
}

// ask asks the shard whether the user may not enter the logical cluster, and whether it has
// entered. It is neither where the shard is not known, or does not answer.
func (v *visit) ask(ctx context.Context) (denied, entered bool) {
	if v.holder == nil {
		return false, false
	}
	timeout := deniedTimeout
	if v.isNew {
		timeout += v.readyIn() // who may enter waits
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	question := url.URL{Scheme: v.holder.base.Scheme, Host: v.holder.base.Host}
	question.RawPath = v.holder.prefix + v.view + request.ClusterPath(v.cluster) + "/version"
	question.Path, _ = url.PathUnescape(question.RawPath) // a URL's prefix and a name
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, question.String(), http.NoBody)
	if err != nil {
		return false, false
	}
	v.identify(r.Header)
	res, err := v.holder.transport(false).RoundTrip(r)
	if err != nil {
		return false, false
	}
	defer func() { _ = res.Body.Close() }()
	mark := takeMark(res.Header)
	if v.view != "" && mark == "false" && (res.StatusCode < http.StatusBadRequest || res.StatusCode == http.StatusNotFound) {
		return true, false // it shows nothing of the logical cluster
	}
	return res.StatusCode == http.StatusForbidden && mark != "true", mark == "true"
}

// refusal is the answer to a user who may not enter, as if there were nothing. It takes as long.
func (v *visit) refusal(r *http.Request) *apierrors.StatusError {
	v.resolver.hold(r.Context(), v.arrived)
	return v.unknown(r)
}

// revoked is the refusal of a user who may have entered before.
func (v *visit) revoked(r *http.Request) *apierrors.StatusError {
	v.accessCache.denied(v.accessKey)
	return v.refusal(r)
}

// lost is the refusal if there is no answer because of err and the user may not enter, and nil otherwise.
func (v *visit) lost(r *http.Request, err error) *apierrors.StatusError {
	if !undialled(err) && v.denied(r.Context()) {
		return v.revoked(r)
	}
	return nil
}

// unavailable is the answer if a logical cluster is there and cannot be reached.
func (v *visit) unavailable(r *http.Request, why string) *apierrors.StatusError {
	if v.denied(r.Context()) {
		return v.refusal(r)
	}
	return unavailable("%s", why)
}

// missing is the answer if there is no such logical cluster, as far as is known.
func (v *visit) missing(r *http.Request, target workspaceindex.Target, outcome workspaceindex.Outcome) *apierrors.StatusError {
	if shards, _ := v.unread(); len(shards) == 0 && expects(r.Context(), v.user, target, outcome) {
		return unavailable("the workspace is not ready yet, try again")
	}
	return v.unknown(r)
}

// unknown is the answer for what there is not, as far as is known, and to who may not enter: that
// it is not known as long as it may be on a shard that has not been read, or that is not connected.
func (v *visit) unknown(r *http.Request) *apierrors.StatusError {
	shards, since := v.unread()
	if len(shards) == 0 {
		return forbidden(r, unescapedRest(v.rest))
	}
	message := "the front-proxy does not know all workspaces, because a shard does not answer"
	if v.administers(r.Context(), v.user) {
		message += ": " + strings.Join(shards, ", ") + ". Start it, or delete its Shard object in root if it does not exist any more"
	}
	retryAfter := retrySoon
	if time.Since(since) > shardRetryTimeout {
		retryAfter = 0
	}
	return statusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, retryAfter, "%s", message)
}
