package shard

// Completed returns the options that the server has.
func (s *Server) Completed() CompletedOptions { return s.options }
