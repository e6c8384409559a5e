package shard

// Completed returns the options that the server has.
func (s *Server) Completed() CompletedOptions { return s.options }

// OwnVersion is ownVersion.
func (s *Server) OwnVersion(version string) (string, error) { return s.ownVersion(version) }
