package merge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// PartialHeader allows, with the value PartialAllow, a response without unreachable shards.
	PartialHeader = "X-Shardplane-Partial"
	// PartialAllow is the only valid value of PartialHeader.
	PartialAllow = "allow"
	// CauseShardUnavailable is the type of the causes in an error; the field of a cause is the unreachable shard.
	CauseShardUnavailable metav1.CauseType = "ShardUnavailable"
	// retrySeconds is the Retry-After of temporary errors.
	retrySeconds = 1
	// maxErrorBytes limits the size of a shard's error.
	maxErrorBytes = 64 << 10
)

// missing are the errors of unreachable shards.
type missing map[string]error

// names returns the sorted names of the shards.
func (m missing) names() []string { return slices.Sorted(maps.Keys(m)) }

// status returns the error if all shards are required.
func (m missing) status() *apierrors.StatusError {
	names := m.names()
	err := apierrors.NewServiceUnavailable("shards are unreachable: " + strings.Join(names, ", ") + ". Try again, or send " + PartialHeader + ": " + PartialAllow + " for a response without them") //nolint:forbidigo // with a delay, see below
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retrySeconds}
	for _, name := range names {
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: CauseShardUnavailable, Field: name, Message: m[name].Error(),
		})
	}
	return err
}

// expired returns the error for a version from which a client cannot continue.
func expired(format string, args ...any) *apierrors.StatusError {
	return apierrors.NewResourceExpired(fmt.Sprintf(format, args...))
}

// invalidOption returns the error for an invalid combination of options.
func invalidOption(name, why string) *apierrors.StatusError {
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", field.ErrorList{field.Forbidden(field.NewPath(name), why)})
}

// errUnreachable is wrapped by the errors of a shard that did not respond, or could not.
var errUnreachable = errors.New("the shard is unreachable")

// check returns nil for a response that can be merged, otherwise the shard's own error, or errUnreachable. It closes the
// body if it returns an error.
func check(res *http.Response) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err != nil || status.Kind != "Status" || status.APIVersion != "v1" || status.Code == 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Code: int32(res.StatusCode), Reason: metav1.StatusReasonUnknown, Message: string(body)} //nolint:gosec // three digits
	}
	return classify(&apierrors.StatusError{ErrStatus: status})
}

// classify returns errUnreachable for errors because of which a shard cannot respond, and others unchanged.
func classify(err *apierrors.StatusError) error {
	switch err.ErrStatus.Code {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", errUnreachable, err.ErrStatus.Message)
	}
	return err
}

// statusOf returns the API error of a shard in err, or nil.
func statusOf(err error) *apierrors.StatusError {
	status, _ := errors.AsType[*apierrors.StatusError](err)
	return status
}
