Rails.application.configure do
end
