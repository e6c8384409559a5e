package webhooktransport

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// MaxResponseBytes bounds a response, after decompression. Requests are limited to 3 MiB, and objects in etcd to half
	// of that: neither converted objects nor patches in base64 are larger.
	//
	//reference:limit request | webhook: response, decompressed | the call fails
	MaxResponseBytes = 4 << 20
	// headerBytes bounds the headers of a response, which are not used.
	//
	//reference:limit request | webhook: response header | the call fails
	headerBytes = 64 << 10
)

// responseError describes an invalid response without quoting it.
type responseError string

func (e responseError) Error() string { return string(e) }

// Operator bounds the responses of the service of c, which the administrator has configured in a file: an attacker who
// controls it must not exhaust the server's memory, or redirect its credentials.
func Operator(c *rest.Config) {
	if c.Proxy == nil {
		c.Proxy = http.ProxyFromEnvironment // the default, but client-go does not share transports with a Proxy function
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		boundHeaders(next)
		return operator{next}
	})
}

// boundHeaders bounds the headers of responses for a transport of client-go. The config must have a Proxy function,
// because client-go shares transports otherwise.
func boundHeaders(transport http.RoundTripper) {
	switch t := transport.(type) {
	case *http.Transport:
		t.MaxResponseHeaderBytes = headerBytes
	case utilnet.RoundTripperWrapper: // transports that reload certificates and CAs
		boundHeaders(t.WrappedRoundTripper())
	}
}

type operator struct{ next http.RoundTripper }

func (o operator) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if err := final(response); err != nil {
		return nil, err
	}
	data, err := readResponse(response.Body)
	if err != nil {
		return nil, err
	}
	replace(response, data)
	return response, nil
}

// final returns an error for responses that are redirects or protocol switches.
func final(response *http.Response) error {
	switch code := response.StatusCode; {
	case code >= 300 && code < 400:
		return responseError(fmt.Sprintf("the webhook returned a redirect (%d), and redirects are not followed: use the URL that it redirects to", code))
	case code < 200:
		return responseError(fmt.Sprintf("the webhook returned status %d instead of a result", code))
	default:
		return nil
	}
}

func readResponse(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, MaxResponseBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxResponseBytes {
		return nil, responseError(fmt.Sprintf("the webhook returned more than %d bytes", MaxResponseBytes))
	}
	return data, nil
}

func replace(response *http.Response, data []byte) {
	response.Body = io.NopCloser(bytes.NewReader(data))
	response.ContentLength = int64(len(data))
}
