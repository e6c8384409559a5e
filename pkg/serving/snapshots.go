package serving

import (
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/etcd/snapshot"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// allowSnapshots exempts snapshots from the request timeout. It must be called before SetChain.
func allowSnapshots(c *genericapiserver.Config) {
	longRunning := c.LongRunningFunc
	c.LongRunningFunc = func(r *http.Request, info *apirequest.RequestInfo) bool {
		return r.URL.Path == snapshot.Path || longRunning(r, info)
	}
}

// installSnapshots serves snapshots of the embedded etcd to administrators, one at a time. Since a
// snapshot contains the secrets of all logical clusters, access cannot be granted by roles.
func installSnapshots(s *genericapiserver.GenericAPIServer, data *etcd.Handle, codecs runtime.NegotiatedSerializer) {
	var busy atomic.Bool
	s.Handler.NonGoRestfulMux.UnlistedHandle(snapshot.Path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := maySave(r); err != nil {
			respond(w, r, codecs, err)
			return
		}
		if !busy.CompareAndSwap(false, true) {
			respond(w, r, codecs, apierrors.NewTooManyRequests("another snapshot is in progress, try again later", 1))
			return
		}
		defer busy.Store(false)
		save(w, r, data, codecs)
	}))
}

func maySave(r *http.Request) error {
	u, _ := apirequest.UserFrom(r.Context())
	_, inCluster := request.ClusterFrom(r.Context())
	_, inShard := request.ShardFrom(r.Context())
	switch {
	case inCluster || inShard:
		return notImplemented(r.URL.Path)
	case !identity.MemberOf(r.Context(), u, user.SystemPrivilegedGroup, request.GroupAdmin):
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("only members of "+user.SystemPrivilegedGroup+" and "+request.GroupAdmin+" may read snapshots"))
	case r.Method != http.MethodGet:
		return request.StatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "snapshots support only GET")
	default:
		return nil
	}
}

func save(w http.ResponseWriter, r *http.Request, data *etcd.Handle, codecs runtime.NegotiatedSerializer) {
	opened, err := data.Snapshot(r.Context())
	if errors.Is(err, etcd.ErrExternal) {
		err = request.StatusError(http.StatusNotImplemented, metav1.StatusReasonInvalid, err.Error())
	}
	if err != nil {
		respond(w, r, codecs, err)
		return
	}
	logger := klog.FromContext(r.Context())
	defer func() {
		if err := opened.Close(); err != nil {
			logger.Error(err, "Failed to close snapshot")
		}
	}()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(opened.Size(), 10))
	n, err := opened.WriteTo(w) // long-running, so that it ends if the client stops reading: etcd cannot free space meanwhile
	if err != nil {
		// The client detects the missing bytes and the missing checksum.
		logger.Error(err, "Failed to send snapshot", "bytes", n, "size", opened.Size())
		return
	}
	logger.Info("Sent snapshot", "bytes", n)
}
