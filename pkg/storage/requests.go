package storage

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/hub"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

func (s *tenantStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	t, key, err := s.one(ctx, key, "create")
	if err != nil {
		return err
	}
	if err := annotate(obj, t); err != nil {
		return err
	}
	s.labels.drop(obj)
	err = s.inner.Create(ctx, key, obj, out, ttl)
	if errors.Is(err, storage.ErrResourceVersionSetOnCreate) {
		return badRequestError{apierrors.NewBadRequest("metadata.resourceVersion must not be set on an object that is created"), err}
	}
	return s.wrote(out, err)
}

func (s *tenantStorage) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions,
) error {
	t, key, err := s.one(ctx, key, "delete")
	if err != nil {
		return err
	}
	claimed, err := s.claimed(ctx, t)
	if err != nil {
		return err
	}
	validate := func(ctx context.Context, obj runtime.Object) error {
		if !claimed.Matches(obj) {
			return storage.NewKeyNotFoundError(key, 0)
		}
		return validateDeletion(ctx, obj)
	}
	return s.wrote(out, s.inner.Delete(ctx, key, out, preconditions, validate, cachedExistingObject, opts))
}

// wrote completes a write: its result has claim labels, as in reads.
func (s *tenantStorage) wrote(result runtime.Object, err error) error {
	if err != nil || result == nil {
		return convertTooLarge(err)
	}
	return s.labels.show(result)
}

func (s *tenantStorage) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	t, key, err := s.one(ctx, key, "get")
	if err != nil {
		return err
	}
	if _, err := s.Versioner().ParseResourceVersion(opts.ResourceVersion); err != nil {
		return invalidVersion(err)
	}
	claimed, err := s.claimed(ctx, t)
	if err != nil {
		return err
	}
	if err := s.inner.Get(ctx, key, opts, out); err != nil {
		return err
	}
	if claimed.Matches(out) {
		return s.labels.show(out)
	}
	if err := runtime.SetZeroValue(out); err != nil || opts.IgnoreNotFound {
		return err
	}
	return storage.NewKeyNotFoundError(key, 0)
}

// GuaranteedUpdate passes the object to the update with claim labels, because clients and field managers compare
// written objects with objects that they have read.
func (s *tenantStorage) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object,
) error {
	t, key, err := s.one(ctx, key, "update")
	if err != nil {
		return err
	}
	claimed, err := s.claimed(ctx, t)
	if err != nil {
		return err
	}
	annotated := func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
		if res.ResourceVersion > 0 && !claimed.Matches(input) {
			return nil, nil, storage.NewKeyNotFoundError(key, 0)
		}
		output, ttl, err := tryUpdate(s.labels.shown(input), res)
		if err != nil {
			return nil, nil, err
		}
		s.labels.drop(output)
		return output, ttl, annotate(output, t)
	}
	return s.wrote(destination, s.inner.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, annotated, cachedExistingObject))
}

// collect determines the tenant and the selection of a list or watch.
func (s *tenantStorage) collect(ctx context.Context, key string, opts storage.ListOptions) (collection, error) {
	t, err := tenantFrom(ctx, s.resource, s.keys.sharded)
	if err != nil {
		return collection{}, err
	}
	rest, err := s.keys.relative(key, opts.Recursive)
	if err != nil {
		return collection{}, err
	}
	prefix := s.keys.prefix(t)
	root := s.keys.root
	if t.identity != "" {
		root += identityPrefix + t.identity
	}
	c := collection{tenant: t, key: prefix, opts: opts, scope: strings.Join([]string{root, t.shard, string(t.cluster), rest}, "\x00")}
	pred := &c.opts.Predicate
	if c.claims.Set, err = s.setFor(ctx, t); err != nil {
		return collection{}, err
	}
	c.claims.Root = s.keys.prefix(tenant{identity: t.identity})
	c.selected.attributes = takeAttributes(pred)
	switch {
	case c.selected.attributes == nil && (pred.GetAttrs == nil || s.keys.sharded):
		pred.GetAttrs = s.getAttrs
	case s.keys.sharded:
		pred.GetAttrs = withClusterField(pred.GetAttrs)
	}
	c.selected.claimLabels = s.labels.selectBy(pred)
	if pred.ShardSelector == nil {
		pred.ShardSelector = request.ShardSelectorFrom(ctx)
	}
	if isSharded(pred) {
		// Upstream's selector allocates for each object.
		if pred.ShardSelector, err = hub.NewSelector(pred.ShardSelector); err != nil {
			return collection{}, apierrors.NewBadRequest(fmt.Sprintf("invalid shardSelector: %v", err))
		}
	} else {
		pred.ShardSelector = nil
	}
	if s.keys.single(t) {
		c.key += rest
		if opts.Recursive && !strings.HasSuffix(c.key, "/") {
			c.key += "/"
		}
		return c, nil
	}
	// A namespace or name in all logical clusters is not a prefix: select it by fields.
	if t.cluster != "" && t.shard == "" {
		pred.Field = and(pred.Field, clusterField, string(t.cluster))
	}
	if rest = strings.TrimSuffix(rest, "/"); rest != "" {
		namespace, name, both := strings.Cut(rest, "/")
		switch {
		case both:
			pred.Field = and(and(pred.Field, "metadata.namespace", namespace), "metadata.name", name)
		case opts.Recursive:
			pred.Field = and(pred.Field, "metadata.namespace", namespace)
		default:
			pred.Field = and(pred.Field, "metadata.name", namespace)
		}
	}
	c.opts.Recursive = true
	return c, nil
}

func (s *tenantStorage) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	c, err := s.collect(ctx, key, opts)
	if err != nil {
		return err
	}
	pred := &c.opts.Predicate
	if pred.Continue, err = openToken(c.scope, pred.Continue); err != nil {
		return err
	}
	matching := makeStrict(pred)
	s.waitReady(ctx)
	if err := s.checkReadable(ctx, c); err != nil {
		return err
	}
	err = s.getList(ctx, c, list)
	if matching.err != nil {
		return matching.err // independent of the layer that serves the list
	}
	if err != nil {
		return sealError(c.scope, retrySoon(err))
	}
	if err := s.labels.show(list); err != nil {
		return err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	accessor.SetContinue(sealToken(c.scope, accessor.GetContinue()))
	return nil
}

// getList lists from the hub, otherwise from the watch cache, or from etcd if the watch cache cannot serve the list.
func (s *tenantStorage) getList(ctx context.Context, c collection, list runtime.Object) error {
	beyondCache := c.beyondCache()
	if s.cache.Ready() && s.hub.WaitFresh(ctx, 0) == nil {
		served, err := s.hub.List(ctx, c.key, c.claims, c.opts, !beyondCache, list)
		switch {
		case errors.Is(err, hub.ErrCompacted):
			beyondCache = true
		case served || err != nil:
			return err
		}
	}
	if !beyondCache {
		return s.inner.GetList(ctx, c.key, c.opts, list)
	}
	caughtUp, err := s.restrictAt(&c)
	if err != nil {
		return err
	}
	if s.keys.single(c.tenant) {
		err = s.raw.GetList(ctx, c.key, c.opts, list)
	} else {
		err = listTolerant(ctx, s.raw, c.key, c.opts, list)
	}
	if err != nil {
		return err
	}
	return caughtUp(ctx, list)
}

// checkReadable fails a list of one logical cluster if one of its objects cannot be read, as kube-apiserver does,
// because clients treat missing objects as deleted.
func (s *tenantStorage) checkReadable(ctx context.Context, c collection) error {
	if !s.keys.single(c.tenant) {
		return nil
	}
	found, err := s.unreadable(ctx, c.tenant.cluster, c.key)
	found = slices.DeleteFunc(found, func(o unreadable.Object) bool { return o.Reason != unreadable.Undecodable })
	if err == nil && len(found) > 0 {
		err = unreadable.NewStatus(s.resource, found...)
	}
	return err
}

// sealError seals the token with which a client may continue after its own has expired.
func sealError(scope string, err error) error {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Continue == "" {
		return err
	}
	sealed := *status
	sealed.ErrStatus.Continue = sealToken(scope, status.ErrStatus.Continue)
	return &sealed
}

// waitReady waits a short time for a watch cache that is being filled. Later, the watch cache returns the error.
func (s *tenantStorage) waitReady(ctx context.Context) {
	if s.cache.Ready() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.readyWait)
	defer cancel()
	_ = s.cache.Wait(ctx)
}

// Continue tokens are upstream's tokens with a seal: a digest of the token and its scope. The seal needs no secret, so
// that a token works on each replica. A forged token cannot select another logical cluster, because upstream's token is
// relative to the key prefix of the request.

const (
	sealSeparator = "."
	sealLength    = 12
)

func seal(scope, token string) string {
	sum := sha256.Sum256([]byte(scope + "\x00" + token))
	return base64.RawURLEncoding.EncodeToString(sum[:sealLength])
}

func sealToken(scope, token string) string {
	if token == "" {
		return ""
	}
	return token + sealSeparator + seal(scope, token)
}

func openToken(scope, sealed string) (string, error) {
	if sealed == "" {
		return "", nil
	}
	token, got, found := strings.Cut(sealed, sealSeparator)
	if !found || token == "" {
		return "", apierrors.NewBadRequest("invalid continue token: not a token of this server")
	}
	if got != seal(scope, token) {
		return "", apierrors.NewBadRequest("invalid continue token: it was changed, or issued for another request")
	}
	return token, nil
}

// tooLargeError is status 413 for an object that exceeds etcd's limit, which upstream maps to 500. It has
// the text of etcd's error, because upstream's handlers recognize the text and retry without managed
// fields.
type tooLargeError struct{ cause error }

// convertTooLarge converts the error of a write to a tooLargeError if the object is too large.
func convertTooLarge(err error) error {
	// A remote client rejects requests that are larger than etcd's limit itself.
	unsent := status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "trying to send message larger than max")
	if unsent || errors.Is(err, rpctypes.ErrRequestTooLarge) {
		return tooLargeError{err}
	}
	return err
}

func (tooLargeError) Error() string    { return rpctypes.ErrRequestTooLarge.Error() }
func (tooLargeError) Code() codes.Code { return codes.InvalidArgument } // as etcd's error
func (e tooLargeError) Unwrap() error  { return e.cause }

func (e tooLargeError) Status() metav1.Status {
	return apierrors.NewRequestEntityTooLargeError("the object exceeds the size limit of etcd, which is 1.5 MiB by default: " + e.cause.Error()).Status()
}

// badRequestError is status 400 for an error that upstream maps to 500.
type badRequestError struct {
	*apierrors.StatusError

	cause error
}

func (e badRequestError) Unwrap() error { return e.cause }

func invalidVersion(err error) error {
	return badRequestError{apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err)), err}
}

// retryAfterSeconds is the suggested delay after a wait for a future version has timed out.
const retryAfterSeconds = 1

// retrySoon adds a retry delay, which etcd3 omits, to the error for a version in the future.
func retrySoon(err error) error {
	var status *apierrors.StatusError
	if !storage.IsTooLargeResourceVersion(err) || !errors.As(err, &status) || status.ErrStatus.Details.RetryAfterSeconds != 0 {
		return err
	}
	retry, details := *status, *status.ErrStatus.Details
	details.RetryAfterSeconds = retryAfterSeconds
	retry.ErrStatus.Details = &details
	return &retry
}
